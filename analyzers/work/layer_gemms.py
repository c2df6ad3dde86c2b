"""The product of each GEMM of a layer, by the model's shape: fused attention marks the layers.

Between the attention of two layers a dense model runs one output projection, one feed-forward network and one
projection to queries, keys and values, in a number of GEMMs that says how they are divided; backward it runs
twice as many. What is between a forward and a backward (the end of the model, with or without the output
layer, or a layer that is computed again) and between a backward and a forward follows from the same numbers.
Where layers have experts, whose GEMMs no shape foretells, the projections beside attention are told alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys, said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.analyzers.work.kernel_names import UNKNOWN, finishes_gemm, fused, like_neighbours, phases
from perfdoc.analyzers.work.model_products import Product, Products, twice
from perfdoc.traces.table import F64, Bool

NONE = -1
_MAX_STREAMS = 16
"""Those with the most attention; more than any program runs its layers on."""
_MAX_APART = 8.0
"""GEMMs of one model reach FLOP rates within this factor of each other: further apart, they are others."""
_LONG = 0.05
"""Of their time: shorter ones may be slow for their bytes or their launch."""
_Way: TypeAlias = tuple[tuple[Product, ...], tuple[Product, ...] | None]
"""Queries, keys and values; the feed-forward network, None with experts."""
_END, _FORWARD, _BACKWARD, _UNKNOWN = range(4)
_MIN_FRAC = 0.5
"""Of the stretches between two attentions: those that fit."""


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
            of_phase = np.flatnonzero(phase == code)
            if core is not None and len(of_phase):
                _, call = row_keys(key[of_phase])
                self.give(at[of_phase], np.full(len(of_phase), self.index(core, label)), call)


def finishing(view: DeviceView, rows: I64) -> Bool:
    """Kernels that sum what a GEMM in front of them left."""
    return said_by_names(view.trace.strings, view.trace.kernels.full_name[rows], finishes_gemm, False)


def match_layers(
    view: DeviceView, kernels: AttributedKernels, products: Products, assignment: Assignment
) -> tuple[int, int]:
    """Fill in GEMMs and attention; how many stretches with GEMMs fit, and how many there are.

    The kernels of one stream run in the order of their launches.
    """
    attends = fused(view, kernels.rows)
    if products.core is None or not products.qkv or not attends.any():
        return 0, 0
    at = np.flatnonzero(attends | (kernels.classes == K.GEMM))
    at = at[attends[at] | ~finishing(view, kernels.rows[at])]
    stream = view.trace.kernels.stream[kernels.rows[at]].astype(np.int64)
    order = np.argsort(stream, kind="stable")
    at, stream = at[order], stream[order]
    streams = np.split(at, np.flatnonzero(np.diff(stream)) + 1)
    phase = np.full(len(kernels.rows), UNKNOWN, np.int64)
    attention = np.flatnonzero(attends)
    by_range = kernels.found.phase[attention].astype(np.int64)
    phase[attention] = phases(view, kernels.rows[attention], by_range)
    fits = seen = 0
    for one in sorted(streams, key=lambda one: -int(attends[one].sum()))[:_MAX_STREAMS]:
        if attends[one].any():
            stretches = _Stretches(one, attends[one], phase[one], products, assignment)
            matched, present = stretches.match()
            fits, seen = fits + matched, seen + present
    new = np.flatnonzero(assignment.product >= 0)
    if not _plausible(view, kernels, assignment, new[~attends[new]]):
        assignment.take_back(new)
        return 0, seen
    return fits, seen


def _plausible(view: DeviceView, kernels: AttributedKernels, assignment: Assignment, at: I64) -> bool:
    """Whether GEMMs have rates that one model's may have."""
    if not len(at):
        return True
    table, of_kernel = view.trace.kernels, assignment.product[at]
    duration = table.end_ns[kernels.rows[at]] - table.start_ns[kernels.rows[at]]
    time = np.bincount(of_kernel, weights=duration).astype(np.float64)
    each = np.array([float(p.flops or 0) for p, _ in assignment.products])[: len(time)]
    used = np.flatnonzero(time)
    flops: F64 = each * np.bincount(of_kernel)
    rates = flops[used] / time[used]
    long = rates[time[used] > _LONG * time.sum()]
    return bool(rates.max() <= _MAX_APART * long.min())


class _Order(NamedTuple):
    """GEMMs that may lie between two attentions, each with its phase."""

    head: tuple[tuple[Product, str], ...]
    tail: tuple[tuple[Product, str], ...] = ()
    has_gap: bool = False
    """Whether any number of experts' GEMMs lies between the two."""

    def fits(self, count: int) -> bool:
        """Whether so many GEMMs may be these."""
        known = len(self.head) + len(self.tail)
        return count >= known if self.has_gap else count == known


class _Stretches:
    """GEMMs of one stream between groups of attention kernels. Each ends with a group, the last with none."""

    def __init__(
        self, at: I64, attends: Bool, phase: I64, products: Products, assignment: Assignment
    ) -> None:
        """at: entries of AttributedKernels; phase: of PHASES, those of attention."""
        self.at, self.products, self.assignment = at, products, assignment
        self.attention = np.flatnonzero(attends)
        apart = np.append(True, np.diff(self.attention) > 1)
        self.phase = like_neighbours(phase[self.attention], np.cumsum(apart))
        """Of each attention kernel."""
        way = np.array([_FORWARD, _FORWARD, _BACKWARD, _UNKNOWN, _UNKNOWN])[self.phase]
        begins = apart | np.append(True, np.diff(way) != 0)
        self.group = np.cumsum(begins) - 1
        begin, end = self.attention[begins], self.attention[np.append(begins[1:], True)] + 1
        direction = way[begins]
        # Attention alone that is computed again lies right before its backward: no layer ends there.
        again = np.append((begin[1:] == end[:-1]) & (direction[1:] == _BACKWARD), False)
        kept = np.flatnonzero(~again)
        self.stretch = np.searchsorted(kept, np.arange(len(begin)))
        """Of each group: the one that ends with it."""
        self.left, self.right = np.append(_END, direction[kept]), np.append(direction[kept], _END)
        self.first = np.append(0, end[kept])
        last = np.append(begin[kept], len(at))
        last[self.stretch[again]] = begin[again]
        self.count = last - self.first

    def match(self) -> tuple[int, int]:
        """Stretches with GEMMs that fit, and all of them."""
        fits = np.zeros(len(self.count), bool)
        seen = self.count > 0
        if (way := self._find_way()) is None:
            return 0, int(seen.sum())
        first, form = row_keys(self.left, self.right, self.count)
        for i, row in enumerate(first.tolist()):
            for order in self._orders(way, int(self.left[row]), int(self.right[row])):
                if order.fits(int(self.count[row])):
                    which = np.flatnonzero(form == i)
                    self._give(order, which)
                    fits[which] = True
        near = fits | np.append(fits[1:], False)
        attention = np.flatnonzero(near[self.stretch[self.group]])
        at = self.at[self.attention[attention]]
        self.assignment.give_attention(at, self.group[attention], self.phase[attention], self.products)
        return int((fits & seen).sum()), int(seen.sum())

    def _find_way(self) -> _Way | None:
        """How the projections and the feed-forward network are divided into GEMMs: as most stretches fit, and
        half or more of those between two layers of each direction; where ways tie, as most of these do. With
        experts the stretches without any tell, those in front of a micro-batch's first layer."""
        if self.products.mlp:
            asked = (self.left != _END) & (self.right != _END)
            asked &= (self.left != _UNKNOWN) & (self.right != _UNKNOWN)
        else:
            asked = (self.left != _FORWARD) & (self.left != _UNKNOWN) & (self.right == _FORWARD)
        inner = np.flatnonzero(asked)
        first, form = row_keys(self.left[inner], self.right[inner], self.count[inner])
        times = np.bincount(form).tolist()
        fits: list[tuple[int, int, _Way]] = []
        for way in product(self.products.qkv, self.products.mlp or (None,)):
            matched = layers = 0
            of_side, fit_of_side = Counter[int](), Counter[int]()
            for row, number in zip(inner[first].tolist(), times, strict=True):
                left, right, count = int(self.left[row]), int(self.right[row]), int(self.count[row])
                orders = [order.fits(count) for order in self._orders(way, left, right)]
                matched += number * any(orders)
                if left == right or not self.products.mlp:
                    layers += number * orders[0]
                    of_side[right] += number
                    fit_of_side[right] += number * any(orders)
            if layers and all(fit_of_side[side] >= _MIN_FRAC * of_side[side] for side in of_side):
                fits.append((matched, layers, way))
        fits.sort(key=lambda one: one[:2], reverse=True)
        tied = len(fits) > 1 and fits[0][:2] == fits[1][:2]
        return None if not fits or tied or fits[0][0] < _MIN_FRAC * len(inner) else fits[0][2]

    def _orders(self, way: _Way, left: int, right: int) -> Iterator[_Order]:
        """What may lie between two attentions."""
        qkv, mlp = way
        proj = tuple((p, "forward") for p in self.products.proj)
        proj_back = tuple((p, "backward") for p in twice(self.products.proj))
        first = tuple((p, "forward") for p in qkv)
        last = tuple((p, "backward") for p in twice(qkv))
        if _UNKNOWN in (left, right) or (left == _END and right != _FORWARD):
            return
        if left == _END:
            yield _Order(first)
        elif left == _BACKWARD and right != _BACKWARD:
            yield _Order(last if right == _END else last + first)
        elif mlp is None:
            tail = {_END: (), _FORWARD: first, _BACKWARD: proj_back}[right]
            yield _Order(proj if left == _FORWARD else last, tail, has_gap=True)
        else:
            forward = proj + tuple((p, "forward") for p in mlp)
            backward = tuple((p, "backward") for p in twice(mlp)) + proj_back
            logits = tuple((p, "forward") for p in self.products.logits)
            gradients = tuple((p, "backward") for p in twice(self.products.logits))
            if left == _BACKWARD:
                orders = [last + backward]
            elif right == _END:
                orders = [forward, forward + logits]
            elif right == _FORWARD:  # also the end of the model, before a layer that is computed again
                orders = [forward + first, forward + logits + gradients + first]
            else:  # PyTorch's checkpoint stops once the last GEMM has its input.
                orders = [forward + backward, forward[:-1] + backward]
                orders.append(forward + logits + gradients + backward)
            yield from map(_Order, orders)

    def _give(self, order: _Order, which: I64) -> None:
        """Give the GEMMs of stretches their products."""
        products = np.array([self.assignment.index(*p) for p in (*order.head, *order.tail)], np.int64)
        begin, end = self.first[which][:, None], (self.first + self.count)[which][:, None]
        place = np.hstack((begin + np.arange(len(order.head)), end - np.arange(len(order.tail), 0, -1)))
        rows = self.at[place].ravel()
        self.assignment.give(rows, np.broadcast_to(products, place.shape).ravel(), np.arange(rows.size))
