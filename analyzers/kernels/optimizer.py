"""The optimizer step as a loop over parameters: a few element-wise kernels for each, one after the other.

Known by the ranges around their launches (`Optimizer.step`, `optimizer`), else by their sequence: Adam takes
a square root for every parameter, at a constant distance, in a stretch of nothing but element-wise kernels.
No model does that, since its layers multiply in between. An update that is fused already is of class
OPTIMIZER by its kernels' names (multi_tensor_apply, fused Adam), and no loop.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum
from perfdoc.analyzers.base.rows import kept, said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import MAX_TEXT
from perfdoc.analyzers.kernels.attributed import AttributedKernels, of_classes
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.kernels import OptimizerLoop
from perfdoc.traces.table import I8, Bool

MIN_KERNELS = 64
"""Of a stretch: no fused update has as many."""
_MIN_TENSORS = 8
"""Square roots at a constant distance."""
_SAME_FRAC = 0.8
"""Of these distances."""
_PER_TENSOR = (3, 40)
SMALL = (KernelClass.ELEMENTWISE, KernelClass.COPY, KernelClass.REDUCTION)
_ROOT = pattern_of(r"(?<!r)sqrt_kernel_cuda")


@dataclass(frozen=True, kw_only=True)
class LoopSpans:
    """When the host launched each stretch of the loop: from its first call's start to its last one's."""

    start_ns: I64
    end_ns: I64
    kernels_per_tensor: int | None
    """None where the sequence does not tell."""


NO_LOOP = LoopSpans(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64), kernels_per_tensor=None)


@dataclass(frozen=True, kw_only=True)
class _Found:
    rows: I64
    """Computing kernels inside the window by start."""
    duration_ns: I64
    small: Bool
    kept: list[tuple[int, int]]
    """[first, end) of the loop's stretches among them."""
    evidence: Literal["range", "sequence"]
    kernels_per_tensor: int | None


def optimizer_loop(view: DeviceView, rows: I64, duration_ns: I64, phase: I8, classes: I64) -> OptimizerLoop:
    """Find it on one device.

    rows: kernels inside the window by start; phase: Phase of the ranges around their launches; classes: their
    KernelClass.
    """
    found = _find(view, rows, duration_ns, phase, classes)
    if found is None:
        return OptimizerLoop()
    rows, duration_ns, kept = found.rows, found.duration_ns, found.kept
    mine = np.concatenate([np.arange(a, b) for a, b in kept])
    mine = mine[found.small[mine]]
    start, end = view.trace.kernels.start_ns[rows], view.trace.kernels.end_ns[rows]
    window = view.window
    begins = np.maximum(np.array([start[a] for a, _ in kept], np.int64), window.start_ns)
    ends = np.minimum(np.array([end[a:b].max() for a, b in kept], np.int64), window.end_ns)
    idle = exact_sum(ends - begins) - exact_sum(view.activity.busy.covered_within(begins, ends))
    spans = _spans(view, found)
    return OptimizerLoop(
        evidence=found.evidence,
        stretches=len(kept),
        kernels=len(mine),
        kernels_ns=exact_sum(duration_ns[mine]),
        idle_ns=max(idle, 0),
        host_ns=exact_sum(spans.end_ns - spans.start_ns),
        kernels_per_tensor=found.kernels_per_tensor,
        names=_names(view, rows[mine]),
    )


def loop_spans(view: DeviceView, kernels: AttributedKernels | None) -> LoopSpans:
    """When it was launched; of kernels whose launch is not known nothing. kernels: as attributed_kernels has
    them."""
    if kernels is None:
        return NO_LOOP
    found = _find(view, kernels.rows, kernels.duration_ns, kernels.context.phase, kernels.classes)
    return NO_LOOP if found is None else _spans(view, found)


def _spans(view: DeviceView, found: _Found) -> LoopSpans:
    spans = []
    for a, b in found.kept:
        call = view.launches.kernels[found.rows[a:b]]
        at = view.trace.api_calls.start_ns[call[call >= 0]]
        if len(at):
            spans.append((int(at.min()), int(at.max())))
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return LoopSpans(start_ns=start, end_ns=end, kernels_per_tensor=found.kernels_per_tensor)


def _find(view: DeviceView, rows: I64, duration_ns: I64, phase: I8, classes: I64) -> _Found | None:
    computes = classes != KernelClass.COMMUNICATION
    rows, duration_ns, phase, classes = kept(computes, rows, duration_ns, phase, classes)
    small = of_classes(classes, SMALL)
    named = phase == Phase.OPTIMIZER
    roots = _names_a_root(view, rows)
    if named.any():
        loops = [s for s in _stretches(named, small, MIN_KERNELS) if not _fused(s, classes)]
    else:
        alike = small & ((phase == Phase.NONE) | (phase == Phase.BACKWARD))
        loops = [t for s in _stretches(alike, roots, _MIN_TENSORS) if (t := _adam(s, roots)) is not None]
    if not loops:
        return None
    return _Found(
        rows=rows,
        duration_ns=duration_ns,
        small=small,
        kept=loops,
        evidence="range" if named.any() else "sequence",
        kernels_per_tensor=_per_tensor(np.flatnonzero(roots[slice(*loops[0])])),
    )


def _stretches(wanted: Bool, counted: Bool, least: int) -> list[tuple[int, int]]:
    """[first, end) of the runs of `wanted` that hold so many of `counted`: few of perhaps millions."""
    change = np.diff(wanted, prepend=False, append=False)
    first, end = np.flatnonzero(change).reshape(-1, 2).T
    before = np.concatenate(([0], np.cumsum(counted)))
    enough = np.flatnonzero(before[end] - before[first] >= least)
    return list(zip(first[enough].tolist(), end[enough].tolist(), strict=True))


def _fused(stretch: tuple[int, int], classes: I64) -> bool:
    """Whether kernels that update many tensors at once do it: one for every `MIN_KERNELS` is enough."""
    inside = classes[slice(*stretch)]
    return int((inside == KernelClass.OPTIMIZER).sum()) * MIN_KERNELS >= len(inside)


def _adam(stretch: tuple[int, int], roots: Bool) -> tuple[int, int] | None:
    """The part of a stretch that repeats for every parameter; None where nothing does."""
    a, b = stretch
    at = np.flatnonzero(roots[a:b])
    each = _per_tensor(at)
    if each is None:
        return None
    first, end = a + max(int(at[0]) - each, 0), min(a + int(at[-1]) + each, b)
    return (first, end) if end - first >= MIN_KERNELS else None


def _per_tensor(at: I64) -> int | None:
    """Kernels from one square root to the next."""
    if len(at) < _MIN_TENSORS:
        return None
    apart = np.diff(at)
    each = int(np.bincount(apart).argmax())
    least, most = _PER_TENSOR
    alike = np.count_nonzero(np.abs(apart - each) <= 1) >= _SAME_FRAC * len(apart)
    return each if alike and least <= each <= most else None


def _names_a_root(view: DeviceView, rows: I64) -> Bool:
    names = view.trace.kernels.full_name[rows]
    return said_by_names(
        view.trace.strings, names, lambda name: _ROOT.search(name[:MAX_TEXT]) is not None, False
    )


_SHOWN = 3


def _names(view: DeviceView, rows: I64) -> list[str]:
    """The most frequent functions."""
    count = np.bincount(view.trace.kernels.name[rows], minlength=len(view.trace.strings))
    order = np.argsort(-count, kind="stable")[:_SHOWN]
    return [view.trace.strings[i] for i in order.tolist() if count[i]]
