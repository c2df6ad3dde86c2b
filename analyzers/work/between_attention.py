"""The product of each GEMM where no range says which part of the model it is of: fused attention marks the
layers.

Between the attention of two layers a dense model runs one output projection, one feed-forward network and one
projection to queries, keys and values, in a number of GEMMs that says how they are divided; backward it runs
twice as many. What is between a forward and a backward (the end of the model, with or without the output
layer, or a layer that is computed again) and between a backward and a forward follows from the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass as K
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.work.kernel_names import UNKNOWN, fused, like_neighbours, phases
from perfdoc.analyzers.work.model_products import Product, Products, twice
from perfdoc.analyzers.work.passes import Assignment, finishing, plausible
from perfdoc.traces.table import F64, Bool

_MAX_STREAMS = 16
"""Those with the most attention; more than any program runs its layers on."""
_Way: TypeAlias = tuple[tuple[Product, ...], tuple[Product, ...]]
"""Queries, keys and values; the feed-forward network."""
_END, _FORWARD, _BACKWARD, _UNKNOWN = range(4)
_MIN_FRAC = 0.5
"""Of the stretches between two attentions: those that fit."""


def match_between_attention(
    view: DeviceView,
    kernels: AttributedKernels,
    products: Products,
    assignment: Assignment,
    other: I64,
) -> tuple[int, int]:
    """Fill in GEMMs and attention that have no product yet; of the stretches with such GEMMs those that fit,
    and all of them.

    other: GEMMs of which ranges show that they are none of the model's. The kernels of one stream run in the
    order of their launches.
    """
    attends = fused(view, kernels.rows)
    if products.core is None or not products.mlp or not attends.any():
        return 0, 0
    at = np.flatnonzero(attends | (kernels.classes == K.GEMM))
    at = at[attends[at] | ~finishing(view, kernels.rows[at])]
    stream = view.trace.kernels.stream[kernels.rows[at]].astype(np.int64)
    order = np.argsort(stream, kind="stable")
    at, stream = at[order], stream[order]
    streams = np.split(at, np.flatnonzero(np.diff(stream)) + 1)
    phase = np.full(len(kernels.rows), UNKNOWN, np.int64)
    attention = np.flatnonzero(attends)
    said = kernels.found.phase[attention].astype(np.int64)
    phase[attention] = phases(view, kernels.rows[attention], said)
    is_other = np.zeros(len(kernels.rows), bool)
    is_other[other] = True
    fits = seen = 0
    before = assignment.product >= 0
    for mine in sorted(streams, key=lambda one: -int(attends[one].sum()))[:_MAX_STREAMS]:
        if attends[mine].any():
            found = _Stretches(mine, attends[mine], phase[mine], is_other[mine], products, assignment).match()
            fits, seen = fits + found[0], seen + found[1]
    new = np.flatnonzero((assignment.product >= 0) & ~before)
    if not _plausible(view, kernels, assignment, new[~attends[new]]):
        assignment.take_back(new)
        return 0, seen
    return fits, seen


def _plausible(view: DeviceView, kernels: AttributedKernels, assignment: Assignment, at: I64) -> bool:
    """Whether GEMMs have rates that one model's may have."""
    if not len(at):
        return True
    table, mine = view.trace.kernels, assignment.product[at]
    duration = table.end_ns[kernels.rows[at]] - table.start_ns[kernels.rows[at]]
    time = np.bincount(mine, weights=duration).astype(np.float64)
    each = np.array([float(p.flops or 0) for p, _ in assignment.products])[: len(time)]
    used = np.flatnonzero(time)
    flops: F64 = each * np.bincount(mine)
    return plausible(flops[used], time[used])


class _Stretches:
    """GEMMs of one stream between groups of attention kernels. Each ends with a group, the last with none."""

    def __init__(
        self, at: I64, attends: Bool, phase: I64, other: Bool, products: Products, assignment: Assignment
    ) -> None:
        """at: entries of AttributedKernels; phase: of PHASES, those of attention."""
        self.at, self.other, self.products, self.assignment = at, other, products, assignment
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
        asked = np.append(0, np.cumsum((assignment.product[at] < 0) & ~attends & ~other))
        self.open = asked[last] > asked[self.first]
        """Stretches with GEMMs that have no product yet, and may have one."""

    def match(self) -> tuple[int, int]:
        """Open stretches that fit, and all of them."""
        fits = np.zeros(len(self.count), bool)
        if (way := self._way()) is None:
            return 0, int(self.open.sum())
        first, form = row_keys(self.left, self.right, self.count)
        for i, row in enumerate(first.tolist()):
            ends = int(self.left[row]), int(self.right[row])
            for found in self._orders(way, *ends):
                if len(found) == self.count[row]:
                    fits |= self._give(found, np.flatnonzero(form == i))
        near = fits | np.append(fits[1:], False)
        mine = np.flatnonzero(near[self.stretch[self.group]])
        mine = mine[self.assignment.product[self.at[self.attention[mine]]] < 0]
        at = self.at[self.attention[mine]]
        self.assignment.give_attention(at, self.group[mine], self.phase[mine], self.products)
        return int((fits & self.open).sum()), int(self.open.sum())

    def _way(self) -> _Way | None:
        """How the projections and the feed-forward network are divided into GEMMs: as most stretches fit, and
        some between two layers of one direction; where ways tie, as most of these do."""
        known = (_FORWARD, _BACKWARD)
        inner = np.flatnonzero(np.isin(self.left, known) & np.isin(self.right, known))
        first, form = row_keys(self.left[inner], self.right[inner], self.count[inner])
        times = np.bincount(form).tolist()
        fits: list[tuple[int, int, _Way]] = []
        for way in product(self.products.qkv, self.products.mlp):
            whole = layers = 0
            for row, number in zip(inner[first].tolist(), times, strict=True):
                left, right = int(self.left[row]), int(self.right[row])
                lengths = [len(order) for order in self._orders(way, left, right)]
                whole += number * (self.count[row] in lengths)
                layers += number * (left == right and self.count[row] == lengths[0])
            fits.append((whole, layers, way))
        fits.sort(key=lambda one: one[:2])
        whole, layers, way = fits[-1]
        if whole < _MIN_FRAC * len(inner) or not layers or (whole, layers) in [f[:2] for f in fits[:-1]]:
            return None
        return way

    def _orders(self, way: _Way, left: int, right: int) -> Iterator[tuple[tuple[Product, str], ...]]:
        """What may lie between two attentions."""
        qkv, mlp = way
        forward = tuple((p, "forward") for p in (*self.products.proj, *mlp))
        backward = tuple((p, "backward") for p in (*twice(mlp), *twice(self.products.proj)))
        first = tuple((p, "forward") for p in qkv)
        last = tuple((p, "backward") for p in twice(qkv))
        logits = tuple((p, "forward") for p in self.products.logits)
        gradients = tuple((p, "backward") for p in twice(self.products.logits))
        if _UNKNOWN in (left, right):
            return
        if right == _END:
            yield from (forward, forward + logits) if left == _FORWARD else (last,)
        elif left == _END:
            yield from (first,) if right == _FORWARD else ()
        elif left == _FORWARD == right:  # also the end of the model, before a layer that is computed again
            yield from (forward + first, forward + logits + gradients + first)
        elif left == right:
            yield last + backward
        elif left == _BACKWARD:
            yield last + first
        else:
            # PyTorch's checkpoint stops once the last GEMM has its input.
            yield from (forward + backward, forward[:-1] + backward, forward + logits + gradients + backward)

    def _give(self, order: tuple[tuple[Product, str], ...], mine: I64) -> Bool:
        """Give the GEMMs of stretches their products; where a range says another, it is right."""
        known = self.assignment
        products = np.array([known.index(*p) for p in order], np.int64)
        place = self.first[mine][:, None] + np.arange(len(order))
        rows = self.at[place]
        flops = np.array([float(p.flops or 0) for p, _ in known.products] + [np.nan])
        there = flops[known.product[rows]]
        fits = (np.isnan(there) | (there == flops[products])).all(axis=1) & ~self.other[place].any(axis=1)
        rows = rows[fits]
        call = np.arange(rows.size)
        new = known.product[rows.ravel()] < 0
        known.give(rows.ravel()[new], np.broadcast_to(products, rows.shape).ravel()[new], call[new])
        found = np.zeros(len(self.count), bool)
        found[mine[fits]] = True
        return found
