"""The passes of a capture through the model's parts, by its ranges, and the product that each GEMM computes.

A pass is what was launched inside the outermost range of one part and one direction; where the ranges are
smaller than a part (autograd's nodes, one range a projection), what was launched one after the other. Its
GEMMs are told apart by their number and by what lies between them. One that shows another number than the
model's shape has is left alone: LoRA, gradients that are computed later, layers of another kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys, said_by_names
from perfdoc.analyzers.device.launches import launches_graphs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.kernels.part_names import PARTS, Phase
from perfdoc.analyzers.kernels.spans import Lane
from perfdoc.analyzers.work.kernel_names import finishes_gemm, fused, phases, softmax
from perfdoc.analyzers.work.model_products import CORE, Anchor, Form, Found, Product, Products, Sequences
from perfdoc.traces.table import F64, Bool

NONE = -1
ANCHORS: tuple[Anchor, ...] = ("", "softmax", "attention")
_SOFTMAX, _ATTENTION = 1, 2
ALIKE = 1.2
"""Chunks of one GEMM are as long as one another within this factor."""
_MIN_FRAC = 0.5
"""Of the passes through a part in one direction: where fewer fit, the model is another."""
_MAX_APART = 8.0
"""GEMMs of one model reach FLOP rates within this factor of each other: further apart, they are others."""
_LONG = 0.05
"""Of their time: shorter ones may be slow for their bytes or their launch."""
_PHASES = {True: "backward", False: "forward"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Launched:
    """GEMMs, attention, and attention's softmax, in some order; one entry each."""

    at: I64
    """Entry of AttributedKernels."""
    gemm: Bool
    """What sums the parts of one is left out."""
    attention: Bool
    core: Bool
    """In a range of attention's core: GEMMs in it are no projections."""
    part: I64
    """As ranges say; -1."""
    phase: I64
    thread: I64
    group: I64
    """Outermost range of its part and phase; -1."""

    def take(self, which: I64) -> Launched:
        """Some of them."""
        return Launched(**{name: column[which] for name, column in vars(self).items()})


def launched(view: DeviceView, kernels: AttributedKernels) -> Launched:
    """Those that a range may be around, by thread and time of their launch."""
    table, api, context = view.trace.kernels, view.trace.api_calls, kernels.context
    wanted = np.zeros(len(K), bool)
    wanted[[K.GEMM, K.ATTENTION, K.SOFTMAX]] = True
    at = np.flatnonzero(wanted[kernels.classes])
    launch, rows = view.launches.kernels, kernels.rows[at]
    known = (launch[rows] >= 0) & (table.graph_node[rows] < 0) & ~finishing(view, rows)
    of_core = softmax(view, rows) & (context.part[at] == PARTS.index("attention"))
    at = at[known & (of_core | fused(view, rows) | (kernels.classes[at] == K.GEMM))]
    at = at[~launches_graphs(view.trace, launch[kernels.rows[at]])]
    calls = launch[kernels.rows[at]]
    time, thread = api.start_ns[calls], api.thread[calls].astype(np.int64)
    order = np.lexsort((time, thread))
    at, time, thread = at[order], time[order], thread[order]
    group, groups = np.full(len(at), NONE, np.int64), 0
    for t, lane in kernels.lanes.items():
        mine = np.flatnonzero(thread == t)
        outermost = _outermost(lane)
        inside = lane.nesting.at(time[mine])
        if len(outermost):
            group[mine] = np.where(inside >= 0, groups + outermost[np.maximum(inside, 0)], NONE)
            groups += len(outermost)
    return Launched(
        at=at,
        gemm=kernels.classes[at] == K.GEMM,
        attention=fused(view, kernels.rows[at]),
        core=context.core[at],
        part=np.where(context.part[at] >= 0, kernels.found.part[at].astype(np.int64), NONE),
        phase=context.phase[at].astype(np.int64),
        thread=thread,
        group=group,
    )


def finishing(view: DeviceView, rows: I64) -> Bool:
    """Kernels that sum what a GEMM in front of them left."""
    return said_by_names(view.trace.strings, view.trace.kernels.full_name[rows], finishes_gemm, False)


def _outermost(lane: Lane) -> I64:
    """By span the outermost one around it whose part and phase are its own, without another between."""
    part, phase, parent = lane.context.part, lane.context.phase, lane.nesting.parent
    found = np.arange(len(part))
    for level in lane.nesting.levels[1:]:
        around = parent[level]
        same = (part[level] >= 0) & (part[level] == part[around]) & (phase[level] == phase[around])
        found[level] = np.where(same, found[around], level)
    return found


def plausible(flops: F64, time: F64) -> bool:
    """Whether GEMMs have rates that one model's may have. NaN: FLOPs that are not known."""
    rates = flops / time
    long = rates[time > _LONG * time.sum()]
    return np.isnan(long).all() or bool(np.nanmax(rates) <= _MAX_APART * np.nanmin(long))


def spread(rates: F64) -> float:
    """Highest over lowest; 1 of none."""
    known = rates[rates > 0]
    return float(known.max() / known.min()) if len(known) else 1.0


def _trains(found: Found, backward: I64) -> bool:
    """Whether backward passes of these numbers of GEMMs may be a forward's: its gradients by input, by weight
    or both, and itself again, whole or but for the last GEMM. Adapters' have other numbers."""
    whole = len(found.products) * found.chunks
    return not len(backward) or bool(np.isin(backward % whole, (0, whole - 1)).any())


class Passes:
    """Gives GEMMs and attention of recognised passes their products."""

    def __init__(
        self,
        view: DeviceView,
        kernels: AttributedKernels,
        products: Products,
        assignment: Assignment,
    ) -> None:
        self.view, self.rows = view, kernels.rows
        self.said = kernels.found.phase
        self.products, self.sequences = products, Sequences(products)
        self.assignment = assignment
        self.recognised = np.zeros(len(kernels.rows), bool)
        self.way: dict[int, frozenset[str]] = {}
        """By part."""
        self.matched = self.left = 0
        """Passes that are recognised, and those that hold other GEMMs."""
        self.other = np.empty(0, np.int64)
        """These GEMMs: entries of AttributedKernels."""

    def match(self, found: Launched) -> None:
        """By ranges; what these do not show, by kernels of one part that follow each other."""
        expected = np.zeros(len(PARTS) + 1, bool)
        for i, part in enumerate(PARTS):
            expected[i] = self.sequences.expects(part)
        asked = np.flatnonzero(expected[found.part] & (found.group >= 0))
        ranges = found.take(asked[np.argsort(found.group[asked], kind="stable")])
        self.matched += self._match(ranges, ranges.group)
        changes = np.ones(len(found.at), bool)
        for column in (found.thread, found.part, found.phase):
            changes[1:] &= column[1:] == column[:-1]
        run = np.cumsum(~changes)
        done = np.bincount(run, weights=self.recognised[found.at]) > 0
        left = np.flatnonzero(expected[found.part] & ~done[run]) if len(run) else run
        self.matched += self._match(found.take(left), run[left])
        gemms = asked[found.gemm[asked] & ~self.recognised[found.at[asked]]]
        self.other, self.left = found.at[gemms], len(np.unique(found.group[gemms]))

    def _match(self, kernels: Launched, key: I64) -> int:
        """kernels: those of one pass together, in launch order. How many passes are recognised."""
        if not len(key):
            return 0
        begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        one = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(key))))
        gemms = np.bincount(one[kernels.gemm], minlength=len(begins))
        attends = kernels.part == PARTS.index("attention")
        anchor = np.zeros(len(begins), np.int64)
        anchor[one[attends & ~kernels.gemm]] = _SOFTMAX
        anchor[one[attends & kernels.attention]] = _ATTENTION
        middle = np.flatnonzero(
            (kernels.attention & (anchor[one] == _ATTENTION)) | (~kernels.gemm & (anchor[one] == _SOFTMAX))
        )
        count = np.append(0, np.cumsum(kernels.gemm))
        before = np.zeros(len(begins), np.int64)
        before[one[middle[::-1]]] = count[middle[::-1]] - count[begins[one[middle[::-1]]]]
        first, form = row_keys(kernels.part[begins], kernels.phase[begins], gemms, anchor, before)
        order = np.argsort(form, kind="stable")
        alike = np.split(order, np.flatnonzero(np.diff(form[order])) + 1)
        forms = [
            (mine, int(kernels.part[begins[i]]), int(kernels.phase[begins[i]]), found)
            for mine in alike
            for i in (int(first[form[mine[0]]]),)
            if (found := self._find(kernels, int(begins[i]), int(gemms[i]), int(before[i]), int(anchor[i])))
        ]
        self._choose(forms)
        forms = [f for f in forms if self.way[f[1]] == f[3].way]
        units = np.flatnonzero(kernels.gemm)
        backward = kernels.phase[begins] == Phase.BACKWARD

        def rows_of(mine: I64) -> I64:
            """One row a pass, one column a GEMM."""
            rows: I64 = units[count[begins[mine]][:, None] + np.arange(gemms[mine[0]])]
            return rows

        forms = [
            (mine, part, phase, found)
            for mine, part, phase, found in forms
            if self._likely(found, kernels.at[rows_of(mine)])
            and (found.backward or _trains(found, gemms[backward & (kernels.part[begins] == part)]))
        ]
        seen = np.zeros((len(PARTS), len(Phase)), np.int64)
        fits = seen.copy()
        np.add.at(seen, (kernels.part[begins[gemms > 0]], kernels.phase[begins[gemms > 0]]), 1)
        for mine, part, phase, _ in forms:
            fits[part, phase] += len(mine)
        done = np.zeros(len(begins), bool)
        for mine, part, phase, found in forms:
            if fits[part, phase] >= _MIN_FRAC * seen[part, phase]:
                gemm = rows_of(mine)
                done[mine] = self._give(found, phase, kernels.at[gemm], kernels.core[gemm])
        self.recognised[kernels.at[done[one]]] = True
        mine = np.flatnonzero(kernels.attention & done[one])
        at = kernels.at[mine]
        directions = phases(self.view, self.rows[at], self.said[at].astype(np.int64))
        self.assignment.give_attention(at, one[mine], directions, self.products)
        return int(done.sum())

    def _find(self, kernels: Launched, first: int, gemms: int, before: int, anchor: int) -> Found | None:
        """What passes of one form run; first: a kernel of such a pass."""
        phase = int(kernels.phase[first])
        if not gemms or phase == Phase.OPTIMIZER:
            return None
        backward = None if phase == Phase.NONE else phase == Phase.BACKWARD
        form = Form(gemms, before, ANCHORS[anchor])
        return self.sequences.find(PARTS[int(kernels.part[first])], backward, form)

    def _choose(self, forms: Sequence[tuple[I64, int, int, Found]]) -> None:
        """One model divides a part in one way: that of most forward passes (a backward that computes its
        forward again, unsaid, may look like another way's); where ways tie, of most passes, else none."""
        forward: Counter[tuple[int, frozenset[str]]] = Counter()
        every: Counter[tuple[int, frozenset[str]]] = Counter()
        for mine, part, _, found in forms:
            every[part, found.way] += len(mine)
            forward[part, found.way] += 0 if found.backward else len(mine)
        for part in {part for part, _ in every} - self.way.keys():
            ranked = sorted(
                (forward[key], n, i) for i, (key, n) in enumerate(every.items()) if key[0] == part
            )
            tied = len(ranked) > 1 and ranked[-1][:2] == ranked[-2][:2]
            self.way[part] = frozenset() if tied else list(every)[ranked[-1][2]][1]

    def _likely(self, found: Found, at: I64) -> bool:
        """Whether GEMMs are as long as their products let expect. at: one row a pass, one column a GEMM.

        A frozen layer that is computed again, unsaid, has as many GEMMs as a backward: each product once, and
        then, last first, its gradient.
        """
        table, rows = self.view.trace.kernels, self.rows[at]
        time = (table.end_ns[rows] - table.start_ns[rows]).sum(axis=0).reshape(-1, found.chunks).sum(axis=1)
        time = np.maximum(time, 1).astype(np.float64)
        flops = np.array([np.nan if p.flops is None else float(p.flops) for p in found.products])
        if not plausible(flops, time):
            return False
        again = flops[1::2][::-1]
        return not found.backward or spread(flops / time) <= spread(np.append(again, again[::-1]) / time)

    def _give(self, found: Found, phase: int, at: I64, core: Bool) -> Bool:
        """at: one row a pass, one column a GEMM; core: those in a range of attention's core. Whether each was
        given its products."""
        parts = at.reshape(len(at), len(found.products), found.chunks)
        of_core = np.array([p.name in CORE for p in found.products]).repeat(found.chunks)
        fits: Bool = (core == of_core).all(axis=1) | ~core.any(axis=1)
        if found.chunks > 1:
            table, rows = self.view.trace.kernels, self.rows[parts]
            name, duration = table.full_name[rows], table.end_ns[rows] - table.start_ns[rows]
            fits &= (name == name[:, :, :1]).all(axis=(1, 2))
            fits &= (duration.max(axis=2) <= ALIKE * duration.min(axis=2)).all(axis=1)
        label = "recompute" if phase == Phase.RECOMPUTE else _PHASES[found.backward]
        mine = parts[fits]
        product = np.array([self.assignment.index(p, label) for p in found.products])
        call = np.arange(len(mine) * len(product)).reshape(len(mine), len(product))
        whole = np.broadcast_to(product[None, :, None], mine.shape)
        self.assignment.give(
            mine.ravel(), whole.ravel(), np.broadcast_to(call[:, :, None], mine.shape).ravel()
        )
        return fits


class Assignment:
    """One entry a kernel; filled in by whoever recognises one."""

    def __init__(self, count: int) -> None:
        self.product: I64 = np.full(count, NONE, np.int64)
        """Index into `products`."""
        self.call: I64 = np.full(count, NONE, np.int64)
        """Kernels that share a product have one number."""
        self.calls = 0
        self._known: dict[tuple[Product, str], int] = {}

    @property
    def products(self) -> list[tuple[Product, str]]:
        """Each with its phase."""
        return list(self._known)

    def index(self, product: Product, phase: str) -> int:
        """Of a product in a phase; -1 where its FLOPs are not known."""
        if product.flops is None:
            return NONE
        return self._known.setdefault((product, phase), len(self._known))

    def give(self, at: I64, product: I64, call: I64) -> None:
        """call: from 0 on."""
        self.product[at] = product
        self.call[at] = np.where(product >= 0, self.calls + call, NONE)
        self.calls += int(call.max(initial=-1)) + 1

    def join(self, at: I64, others: I64) -> None:
        """Let kernels share the product of others."""
        self.product[at], self.call[at] = self.product[others], self.call[others]

    def take_back(self, at: I64) -> None:
        """Let kernels have no product."""
        self.product[at] = self.call[at] = NONE

    def give_attention(self, at: I64, key: I64, phase: I64, products: Products) -> None:
        """Fused attention: kernels of one key and direction share one layer's. phase: of PHASES."""
        for code, label, core in (
            (Phase.FORWARD, "forward", products.core),
            (Phase.RECOMPUTE, "recompute", products.core),
            (Phase.BACKWARD, "backward", products.core_backward),
        ):
            mine = np.flatnonzero(phase == code)
            if core is not None and len(mine):
                _, call = row_keys(key[mine])
                self.give(at[mine], np.full(len(mine), self.index(core, label)), call)
