"""What one captured rank says of its stage: each pass of a micro-batch, and what a step does beside them.

Small enough to travel from the process that read the capture, whatever the capture's size: a job of any
number of ranks is modelled from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.rules import REDUCING
from perfdoc.analyzers.ledger.steps import exposed_pieces
from perfdoc.analyzers.pipeline.layout import stage_of
from perfdoc.analyzers.pipeline.passes import (
    Passes,
    find_passes,
    layer_spans,
    leading_forwards,
    numbered_micro_batches,
    pass_ranges,
)
from perfdoc.analyzers.pipeline.rank import pipeline_group
from perfdoc.records import dataclass
from perfdoc.simulator.work.messages import Messages, messages_of
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import F64, at_percent, median, unique

GROUPS = ("gemm", "attention", "other")
"""Of compute: what scales alike when the layout changes."""
INSIDE_A_PASS = ("tp", "cp", "ep")
"""Dimensions whose communication belongs to the pass that launched it."""
_GROUP_OF: Mapping[int, int] = MappingProxyType(
    {int(KernelClass.GEMM): 0, int(KernelClass.CONVOLUTION): 0, int(KernelClass.ATTENTION): 1}
)
KERNEL_NS = 2_000.0
"""Of a kernel, whatever its size: ramp-up and drain. Round, not measured."""
_FAST_PERCENTILE = 10
"""Of messages of one size: what they take once both sides are there."""
_DP = DIMENSIONS.index("dp")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Collectives of one kind and size that a rank took part in."""

    dimension: str
    collective: str
    """Empty where it is not known."""
    bytes: int
    """-1 unknown."""
    per_step: float
    in_passes_frac: float
    """Share of them that starts before the last pass of its step ends, and not before the first."""
    fast_ns: float
    """What one takes when nobody is late: a low percentile of its durations."""
    mean_ns: float


@dataclass(frozen=True, kw_only=True)
class PassWork:
    """The passes of one direction on one rank; means over passes, in ns."""

    length_ns: float
    """From a pass's first work to its last."""
    compute_ns: float
    exposed_ns: Mapping[str, float]
    """By dimension of INSIDE_A_PASS: communication that no compute hides."""
    idle_ns: float
    """The rest of the length: gaps, copies, other communication."""
    group_frac: Mapping[str, float]
    """Shares of compute by group of GROUPS."""
    kernels: float
    fixed_ns: float
    """Of the compute: what its kernels, or on a CPU rank its operators, take whatever their size."""
    host_ns: float | None
    """What the host takes to issue a pass if nothing holds it up; None unknown. On a CPU rank the length."""
    outside_layers_frac: float | None
    """Share of the compute that no range of a layer holds; None where no range names layers."""


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """One rank in the whole steps of its window; means over steps, in ns."""

    rank: int | None
    world_size: int | None
    group: tuple[int, ...]
    """Global ranks of its pipeline, first stage first; empty unknown."""
    facts: JobFacts
    gpu_name: str | None
    on_host: bool
    steps: int
    step_ns: float
    passes: int
    """Forward passes of a step."""
    leading: int | None
    """Those before the first backward pass; None unknown."""
    micro_batches: int | None
    """Of a step, by the numbers in ranges; None without."""
    forward: PassWork
    """Without the first of a step, where there are others: it may wait for weights."""
    backward: PassWork
    first_extra_ns: float
    """What the first forward of a step takes beyond the others."""
    layers: tuple[int, ...]
    """Layers of the model that ranges name, ascending."""
    before_ns: float
    """From the start of a step to the first pass."""
    window_ns: float
    """From the start of the first pass to the end of the last."""
    after_ns: float
    """From the end of the last pass to the end of the step."""
    reduced_after_ns: float
    """From the end of the last pass to the end of the last reduction of gradients; 0 where all have ended by
    then."""
    traffic: tuple[Traffic, ...]
    messages: Messages

    def stage(self, pp: int) -> int | None:
        """Of so many; None unknown."""
        return stage_of(self.rank, self.group, self.world_size, pp)


def rank_work(view: DeviceView, _: object = None) -> RankWork | None:
    """Measure one rank, as `measure_capture` asks; None where its window is not made of steps, no range shows
    its passes, or the capture holds only part of the events."""
    if view.events.partial:
        return None
    steps = view.window.step_list
    passes = _whole_steps(find_passes(view), len(steps)) if steps else None
    if passes is None or not passes.is_forward.any() or passes.is_forward.all():
        return None
    start, end = passes.start_ns, passes.end_ns
    numbers = unique(passes.step)
    first = np.array([start[passes.step == s].min() for s in numbers], np.int64)
    last = np.array([end[passes.step == s].max() for s in numbers], np.int64)
    begin = np.array([steps[s].start_ns for s in numbers], np.int64)
    finish = np.array([steps[s].end_ns for s in numbers], np.int64)
    forward, backward, first_extra = _both_ways(view, passes)
    spans = layer_spans(view)
    return RankWork(
        rank=view.device.rank,
        world_size=view.trace.world_size or view.facts.world_size,
        group=pipeline_group(view)[0],
        facts=view.facts,
        gpu_name=view.device.gpu_name,
        on_host=view.activity.on_host,
        steps=len(numbers),
        step_ns=float(np.mean(finish - begin)),
        passes=int(passes.is_forward.sum()) // len(numbers),
        leading=leading_forwards(passes),
        micro_batches=numbered_micro_batches(passes),
        forward=forward,
        backward=backward,
        first_extra_ns=first_extra,
        layers=tuple(unique(spans.layer[spans.layer >= 0]).tolist()),
        before_ns=float(np.mean(first - begin)),
        window_ns=float(np.mean(last - first)),
        after_ns=float(np.mean(finish - last)),
        reduced_after_ns=_reduced_after_ns(view, last, finish),
        traffic=tuple(_traffic(view, begin, finish, first, last)),
        messages=messages_of(view),
    )


def _both_ways(view: DeviceView, passes: Passes) -> tuple[PassWork, PassWork, float]:
    activity = view.activity
    start, end = passes.start_ns, passes.end_ns
    compute = activity.compute.covered_within(start, end)
    exposed = _exposed(view, start, end)
    idle = end - start - compute - np.sum(list(exposed.values()), axis=0)
    by_group, kernels = _kernels(view, start, end)
    fixed = _operators_ns(view, start, end) if activity.on_host else kernels * KERNEL_NS
    outside = _outside_layers(view, passes)
    host = _host_ns(view)
    found = []
    rows = np.flatnonzero(passes.is_forward)
    firsts = rows[np.unique(passes.step[rows], return_index=True)[1]]
    later = passes.is_forward.copy()
    later[firsts] = False
    usual = later if later.any() else passes.is_forward
    for way, mine in enumerate((usual, ~passes.is_forward)):
        whole = max(float(by_group[:, mine].sum()), 1.0)
        length = float(np.mean((end - start)[mine]))
        found.append(
            PassWork(
                length_ns=length,
                compute_ns=float(compute[mine].mean()),
                exposed_ns={name: float(ns[mine].mean()) for name, ns in exposed.items()},
                idle_ns=float(idle[mine].mean()),
                group_frac={g: float(by_group[i, mine].sum()) / whole for i, g in enumerate(GROUPS)},
                kernels=float(kernels[mine].mean()),
                fixed_ns=float(fixed[mine].mean()),
                host_ns=length if activity.on_host else host[way],
                outside_layers_frac=None if outside is None else outside[way],
            )
        )
    extra = float(np.mean((end - start)[firsts])) - found[0].length_ns
    return found[0], found[1], max(extra, 0.0)


def _whole_steps(passes: Passes, steps: int) -> Passes:
    """Those of steps with the usual number: a step that the capture cuts, or that evaluates, has another."""
    if not len(passes):
        return passes
    forwards = np.bincount(passes.step[passes.is_forward], minlength=steps)
    backwards = np.bincount(passes.step[~passes.is_forward], minlength=steps)
    usual = np.bincount(forwards[forwards > 0]).argmax() if (forwards > 0).any() else 0
    keep = np.flatnonzero((forwards == usual) & (backwards == usual))
    return passes.take(np.isin(passes.step, keep))


def _exposed(view: DeviceView, start: I64, end: I64) -> dict[str, I64]:
    found = {name: np.zeros(len(start), np.int64) for name in INSIDE_A_PASS}
    for begin, finish, dimension, covered in exposed_pieces(
        view.activity.communication, view.activity.compute
    ):
        for name in INSIDE_A_PASS:
            mine = dimension == DIMENSIONS.index(name)
            if mine.any():
                pieces: Intervals = union(begin[mine], finish[mine]) - covered
                found[name] += pieces.covered_within(start, end)
    return found


def _kernels(view: DeviceView, start: I64, end: I64) -> tuple[F64, I64]:
    """(groups, passes) time of kernels that compute; how many each pass has. Of a CPU rank nothing."""
    activity, trace = view.activity, view.trace
    rows = activity.kernel_rows[~activity.kernel_is_comm]
    begin = trace.kernels.start_ns[rows]
    at = np.searchsorted(start, begin, "right") - 1
    inside = (at >= 0) & (begin < end[np.maximum(at, 0)])
    rows, at = rows[inside], at[inside]
    group_of = np.array([_GROUP_OF.get(int(k.kernel_class), 2) for k in view.kinds.kinds] or [2], np.int64)
    group = group_of[view.kinds.kind[rows]]
    took = trace.kernels.end_ns[rows] - trace.kernels.start_ns[rows]
    flat = np.bincount(group * len(start) + at, took, len(GROUPS) * len(start)).astype(np.float64)
    return flat.reshape(len(GROUPS), len(start)), np.bincount(at, minlength=len(start))


def _operators_ns(view: DeviceView, start: I64, end: I64) -> F64:
    """By pass, what operators of a CPU rank take if each is as short as the shortest are."""
    compute = view.activity.compute
    at = np.searchsorted(start, compute.start_ns, "right") - 1
    inside = (at >= 0) & (compute.start_ns < end[np.maximum(at, 0)])
    took = (compute.end_ns - compute.start_ns)[inside]
    if not len(took):
        return np.zeros(len(start))
    least = np.minimum(took, at_percent(took, _FAST_PERCENTILE))
    return np.bincount(at[inside], least, len(start)).astype(np.float64)


def _host_ns(view: DeviceView) -> tuple[float | None, float | None]:
    """(forward, backward) what the launches of a pass and the host's time between them take, the median
    pass; a launch that a full queue holds up counts as the usual one does."""
    activity = view.activity
    known = activity.launch_start_ns >= 0
    begin, at = np.unique(activity.launch_start_ns[known], return_index=True)
    finish = activity.launch_end_ns[known][at]  # of a graph, one call launches several
    if not len(begin):
        return None, None
    took = np.minimum(finish - begin, np.median(finish - begin))
    gap = np.append(np.maximum(begin[1:] - finish[:-1], 0), 0)
    total = np.append(0.0, np.cumsum(took + gap))
    rows, is_forward = pass_ranges(view)
    ranges = view.trace.ranges
    a, b = np.searchsorted(begin, ranges.start_ns[rows]), np.searchsorted(begin, ranges.end_ns[rows])
    own = total[b] - total[a] - np.where(b > a, gap[np.maximum(b - 1, 0)], 0)
    forward, backward = own[is_forward & (b > a)], own[~is_forward & (b > a)]
    return tuple(float(median(x)) if len(x) else None for x in (forward, backward))  # type: ignore[return-value]


def _outside_layers(view: DeviceView, passes: Passes) -> tuple[float, float] | None:
    spans = layer_spans(view)
    if not len(spans):
        return None
    activity = view.activity
    if activity.on_host:
        inside = union(spans.start_ns, spans.end_ns).covered_within(passes.start_ns, passes.end_ns)
        length = passes.end_ns - passes.start_ns
    else:
        mine = activity.is_compute & (activity.launch_start_ns >= 0)
        start, took = activity.start_ns[mine], (activity.end_ns - activity.start_ns)[mine]
        at = np.searchsorted(passes.start_ns, start, "right") - 1
        held = (at >= 0) & (start < passes.end_ns[np.maximum(at, 0)])
        of_layer = spans.at(activity.launch_start_ns[mine][held]) >= 0
        length = np.bincount(at[held], took[held], len(passes))
        inside = np.bincount(at[held], np.where(of_layer, took[held], 0), len(passes))
    forward = passes.is_forward
    found = [float(1 - inside[d].sum() / max(float(length[d].sum()), 1.0)) for d in (forward, ~forward)]
    return found[0], found[1]


def _reduced_after_ns(view: DeviceView, last: I64, finish: I64) -> float:
    comm = view.activity.communication
    reduces = np.array([k is not None and k.collective in REDUCING for k in comm.kinds], bool)
    end = np.sort(comm.end_ns[(comm.dimension == _DP) & reduces[comm.kind]])
    if not len(end):
        return 0.0
    at = np.searchsorted(end, finish, "right") - 1
    return float(np.mean(np.maximum(np.where(at >= 0, end[np.maximum(at, 0)], last) - last, 0)))


def _traffic(view: DeviceView, begin: I64, finish: I64, first: I64, last: I64) -> list[Traffic]:
    comm = view.activity.communication
    at = np.searchsorted(begin, comm.start_ns, "right") - 1
    inside = np.flatnonzero((at >= 0) & (comm.start_ns < finish[np.maximum(at, 0)]))
    # Kinds are by name, and on a CPU rank the name of each collective is its own.
    found_names = [k.collective if k is not None else "" for k in comm.kinds]
    names, named = np.unique(np.array(found_names or [""]), return_inverse=True)
    keys = np.stack((comm.dimension[inside], named[comm.kind[inside]], comm.bytes[inside]))
    found = []
    for key in sorted(set(zip(*keys.tolist(), strict=True))):
        rows = inside[(keys == np.array(key)[:, None]).all(axis=0)]
        took = comm.end_ns[rows] - comm.start_ns[rows]
        beside = (comm.start_ns[rows] >= first[at[rows]]) & (comm.start_ns[rows] < last[at[rows]])
        found.append(
            Traffic(
                dimension=DIMENSIONS[key[0]],
                collective=str(names[key[1]]),
                bytes=int(key[2]),
                per_step=len(rows) / len(begin),
                in_passes_frac=float(beside.mean()),
                fast_ns=float(at_percent(took, _FAST_PERCENTILE)),
                mean_ns=float(took.mean()),
            )
        )
    return found
