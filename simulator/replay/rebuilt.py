"""One rank, or the ranks of a job, rebuilt: the graph, and what edits need to know of its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals
from perfdoc.analyzers.base.rows import row_keys, said_by_names
from perfdoc.analyzers.device.activity import UNKNOWN_DIMENSION
from perfdoc.analyzers.device.view import DeviceView, host_intervals, optimizer_starts
from perfdoc.analyzers.efficiency.bounds import KernelBounds
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import NAME_FORMATS, likely_16_bits_speedup
from perfdoc.analyzers.kernel_class.rules import REDUCING
from perfdoc.analyzers.kernels.attributed import AttributedKernels, attributed_kernels
from perfdoc.analyzers.kernels.optimizer import NO_LOOP, LoopSpans, loop_spans
from perfdoc.analyzers.kernels.spans import Lane
from perfdoc.analyzers.pipeline.passes import NO_LAYERS, HostPasses, LayerSpans, host_passes, layer_spans
from perfdoc.records import dataclass
from perfdoc.simulator.engine import Edges, TaskGraph, TaskKind
from perfdoc.simulator.engine.graph import I8, I64, NONE
from perfdoc.simulator.engine.schedule import topological_order
from perfdoc.simulator.replay.rank_tasks import EVERY, RankTasks, rank_tasks, unknown
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import F64, Bool, unique


@dataclass(frozen=True, kw_only=True)
class RankFrame:
    """What is known of one rank besides its tasks; times like those of the tasks."""

    rank: int | None
    name: str
    on_host: bool
    """A rank that trains on the CPU: its end is its host's."""
    window_start_ns: int
    window_end_ns: int
    step_starts_ns: tuple[int, ...]
    """When each step's range began on the host; empty where the window is not made of steps."""
    step_ends_ns: tuple[int, ...]
    """When each step ended where the window counts: on the device, or of a CPU rank on its host."""
    optimizer_starts_ns: I64
    host: Mapping[str, Intervals]
    """What its host did besides launching: `gc`, `data`."""
    passes: HostPasses
    facts: JobFacts
    """What is known of the job beside the capture."""
    unexplained_by_step_ns: tuple[int, ...]
    """See RankTasks."""
    impossible_edges: int
    communication_task: I64
    """Task of each row of Activity.communication; -1 outside of the window."""
    gpu_name: str | None = None
    layers: LayerSpans = NO_LAYERS
    optimizer: LoopSpans = NO_LOOP
    """Launches of an optimizer that loops over the parameters."""
    bounds: KernelBounds | None = None
    """What its kernels would take at their bounds; None where none is known."""
    host_end_ns: int | None = None
    """When the next step begins on the host, of a part of a window; None where the window ends first."""
    host_left_frac: Mapping[str, float] = field(default_factory=dict)
    """Of `host`, what an edit left of its length; what is not named here is whole."""

    @property
    def unexplained_ns(self) -> int:
        """Over all steps."""
        return sum(self.unexplained_by_step_ns)

    def held_ns(self, what: str, begin_ns: I64, end_ns: I64) -> I64:
        """How long the host did something within each of these stretches, as measured; what an edit took away
        is not in it."""
        held = self.host[what].covered_within(begin_ns, end_ns) * self.host_left_frac.get(what, 1.0)
        return np.asarray(np.round(held).astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """Tasks as measured. Columns are by task, all of one length; `graph.rank` is the index into `ranks`.

    An edit changes durations, lags and edges of the graph; it takes no task away and says nothing else of
    one, so that edits compose. Numbers of tasks are not kept.
    """

    graph: TaskGraph
    start_ns: I64
    """As measured."""
    end_ns: I64
    launch_ns: I64
    """When the host launched it, -1 unknown; of host tasks their start."""
    call: I8
    """CallKind of a CUDA call, -1 for everything else."""
    dimension: I8
    """Index into activity.DIMENSIONS; `unknown` for what does not communicate."""
    kernel_class: I8
    """KernelClass; -1 for what is no kernel."""
    bytes: I64
    """Message size of communication; -1 unknown."""
    reduces: I8
    """1 for a collective that does arithmetic on what it sends, -1 for communication whose collective is not
    known, 0 for every other task."""
    alone_ns: I64
    """Of a norm kernel that ran beside communication: the median of the same kernel's runs without; -1
    unknown."""
    narrow_ns: I64
    """Of a GEMM or an attention kernel in FP32 or TF32: what it likely takes in 16 bits;
    -1 for all others, and on a GPU that is not known."""
    ranks: tuple[RankFrame, ...]

    @cached_property
    def on_host(self) -> Bool:
        """By task: whether it is of a rank that trains on the CPU."""
        of_rank = np.array([r.on_host for r in self.ranks], bool)
        return of_rank[self.graph.rank] if of_rank.any() else np.zeros(len(self.start_ns), bool)

    @cached_property
    def by_launch(self) -> list[I64]:
        """Tasks that compute, by rank; of each in the order of their launch, unknown ones first."""
        rows = np.flatnonzero(self.graph.kind == TaskKind.COMPUTE)
        rows = rows[np.lexsort((self.start_ns[rows], self.launch_ns[rows]))]
        return [rows[mine] for mine in self.by_rank(rows)]

    @cached_property
    def met(self) -> tuple[I64, I64]:
        """At matched collectives: (arrival, meeting)."""
        kind, edges = self.graph.kind, self.graph.edges
        into = np.flatnonzero((kind == TaskKind.MEETING)[edges.target])
        into = into[kind[edges.source[into]] == TaskKind.ARRIVAL]
        return edges.source[into], edges.target[into]

    @cached_property
    def first_steps(self) -> I64:
        """By rank the number of its first step among those of all: at one time all do the same step."""
        longest = max(self.ranks, key=lambda r: len(r.step_starts_ns))
        at = []
        for r in self.ranks:
            ends = np.array([r.window_start_ns, *r.step_ends_ns], np.int64)
            middles = ends[:-1] + np.diff(ends) // 2
            before = int((middles < longest.window_start_ns).sum())
            at.append(-before or int(np.searchsorted(longest.step_ends_ns, middles[:1], "right").sum()))
        return np.array(at, np.int64) - min(at)

    @property
    def steps(self) -> int:
        """Steps of the window, of all ranks together where they differ; 0 where it is not made of steps."""
        counts = [len(r.step_starts_ns) for r in self.ranks]
        return int((self.first_steps + counts).max()) if min(counts) else 0

    @property
    def missing_steps(self) -> int:
        """Those of them that some rank lacks."""
        behind = self.first_steps + [len(r.step_starts_ns) for r in self.ranks]
        return self.steps - max(int(behind.min() - self.first_steps.max()), 0) if self.steps else 0

    def by_rank(self, tasks: I64) -> list[I64]:
        """For each rank the places in a list of tasks of those that are its own, in their order."""
        rank = self.graph.rank[tasks].astype(np.min_scalar_type(len(self.ranks)))
        order = np.argsort(rank, kind="stable")  # of few bytes it takes one pass
        return np.split(order, np.searchsorted(rank[order], np.arange(1, len(self.ranks))))

    @cached_property
    def shown_layers(self) -> tuple[int, int]:
        """The first and the last layer of the model, as far as the ranks show: of a pipeline, the first of
        one stage and the last of another."""
        shown = [r.layers.layer for r in self.ranks if len(r.layers)]
        return min((int(n.min()) for n in shown), default=0), max((int(n.max()) for n in shown), default=0)

    @cached_property
    def computations(self) -> I64:
        """Tasks that compute, by rank and launch."""
        work = np.flatnonzero((self.graph.kind == TaskKind.COMPUTE) & (self.launch_ns >= 0))
        return work[np.lexsort((self.launch_ns[work], self.graph.rank[work]))]

    def span(self, end_ns: I64) -> int:
        """From the start of the window to the last end of the ranks' work; 0 where they did none."""
        mine = np.flatnonzero(self.on_host | (self.graph.kind != TaskKind.HOST))
        return int(end_ns[mine].max()) - min(r.window_start_ns for r in self.ranks) if len(mine) else 0

    def spans(self, end_ns: I64) -> list[int]:
        """The same of each rank by itself."""
        mine = np.flatnonzero(self.on_host | (self.graph.kind != TaskKind.HOST))
        starts = np.array([r.window_start_ns for r in self.ranks], np.int64)
        last, works = starts.copy(), np.bincount(self.graph.rank[mine], minlength=len(starts)) > 0
        last[works] = np.iinfo(np.int64).min
        np.maximum.at(last, self.graph.rank[mine], end_ns[mine])
        return [int(ns) for ns in last - starts]


def rebuild_rank(
    view: DeviceView,
    kernels: AttributedKernels | None = None,
    most: int = EVERY,
    lanes: Mapping[int, Lane] | None = None,
) -> Rebuilt:
    """Rebuild the window of one rank. kernels: as attributed_kernels has them; None not asked for yet. lanes:
    as find_lanes has them, likewise.

    most: of more tasks only what a replay asks for is filled, in half the memory; no edit may follow.
    """
    activity, window = view.activity, view.window
    if activity.on_host:
        from perfdoc.simulator.replay.cpu_tasks import cpu_tasks

        tasks = cpu_tasks(view)
    else:
        tasks = rank_tasks(view, most)
    count = len(tasks.start_ns)
    whole = count <= most
    comm = activity.communication
    at = tasks.activity_task[activity.comm_rows]
    dimension = np.full(count, UNKNOWN_DIMENSION, np.int8)
    dimension[at[at >= 0]] = comm.dimension[at >= 0]
    size = np.full(count, NONE, np.int64) if whole else unknown(count)
    if whole:
        size[at[at >= 0]] = comm.bytes[at >= 0]
    reduces = np.zeros(count, np.int8)
    named = [k.collective if k is not None else None for k in comm.kinds]
    does = np.array([int(name in REDUCING) if name else NONE for name in named], np.int8)
    reduces[at[at >= 0]] = does[comm.kind[at >= 0]] if len(does) else 0
    no_kernels = (np.broadcast_to(np.int8(NONE), count), unknown(count), unknown(count))
    kernel_class, alone, narrow = _kernels(view, tasks) if whole else no_kernels
    device = view.device
    return Rebuilt(
        graph=tasks.graph,
        start_ns=tasks.start_ns,
        end_ns=tasks.end_ns,
        launch_ns=tasks.launch_ns,
        call=tasks.call,
        dimension=dimension,
        kernel_class=kernel_class,
        bytes=size,
        reduces=reduces,
        alone_ns=alone,
        narrow_ns=narrow,
        ranks=(
            RankFrame(
                rank=device.rank,
                name=f"device {device.ordinal}" if device.rank is None else f"rank {device.rank}",
                on_host=activity.on_host,
                window_start_ns=window.start_ns,
                window_end_ns=window.end_ns,
                step_starts_ns=tuple(view.step_ranges.start_ns.tolist()),
                step_ends_ns=tuple(s.end_ns for s in window.step_list),
                optimizer_starts_ns=optimizer_starts(view),
                host=host_intervals(view),
                passes=host_passes(view),
                facts=view.facts,
                unexplained_by_step_ns=tuple(tasks.unexplained_by_step_ns.tolist()),
                impossible_edges=tasks.impossible_edges,
                communication_task=at,
                gpu_name=device.gpu_name,
                layers=layer_spans(view),
                optimizer=loop_spans(view, kernels or attributed_kernels(view, lanes)) if whole else NO_LOOP,
            ),
        ),
    )


_KERNEL_MIN_NS = 2_000
"""What a kernel takes however little it computes."""


def _kernels(view: DeviceView, tasks: RankTasks) -> tuple[I8, I64, I64]:
    """Class of each task's kernel, for norms beside communication the duration alone, and for FP32 the
    duration in 16 bits."""
    count = len(tasks.start_ns)
    kernel_class, alone = np.full(count, NONE, np.int8), np.full(count, NONE, np.int64)
    of_activity = view.activity.kernel
    known = np.flatnonzero((of_activity >= 0) & (tasks.activity_task >= 0))
    row, task = of_activity[known].astype(np.int64), tasks.activity_task[known]
    class_of = np.array([k.kernel_class for k in view.kinds.kinds], np.int8)
    kernel_class[task] = class_of[view.kinds.kind[row]]
    narrow = np.full(count, NONE, np.int64)
    speedup = _speedups(view, row)
    faster = speedup > 1
    took = tasks.end_ns[task[faster]] - tasks.start_ns[task[faster]]
    least = np.minimum(took, _KERNEL_MIN_NS)
    narrow[task[faster]] = np.maximum(np.round(took / speedup[faster]).astype(np.int64), least)
    norm = kernel_class[task] == KernelClass.NORM
    row, task = row[norm], task[norm]
    start, end = tasks.start_ns[task], tasks.end_ns[task]
    beside = view.activity.kernel_comm.covered_within(start, end) > 0
    if beside.any():
        kernels = view.trace.kernels
        shape = (kernels.full_name, kernels.name, kernels.grid_blocks, kernels.block_threads)
        _, code = row_keys(*(column[row].astype(np.int64) for column in shape))
        for signature in unique(code[beside]).tolist():
            mine = code == signature
            free = (end - start)[mine & ~beside]
            if len(free):
                alone[task[mine & beside]] = int(np.median(free))
    return kernel_class, alone, narrow


def _speedups(view: DeviceView, row: I64) -> F64:
    """Of kernels: how many times as fast each would be in 16 bits; 1 unknown."""
    names, classes = view.trace.kernels.full_name[row], view.kinds.class_code[row]
    found = np.ones(len(row))
    for kind in NAME_FORMATS:
        mine = np.flatnonzero(classes == kind)
        look = partial(likely_16_bits_speedup, kernel_class=kind, gpu_name=view.device.gpu_name)
        found[mine] = said_by_names(view.trace.strings, names[mine], look, 1.0)
    return found


def with_edges(rebuilt: Rebuilt, edges: Edges) -> Rebuilt | None:
    """The same tasks with these edges, numbered anew if needed; None where they wait for each other in a
    circle."""
    count, old = len(rebuilt.start_ns), rebuilt.graph
    if (edges.source < edges.target).all():
        return replace(rebuilt, graph=replace(old, edges=edges))
    order = topological_order(count, edges.source, edges.target)
    if order is None:
        return None
    graph = TaskGraph(**{n: getattr(old, n)[order] for n in OF_GRAPH}, edges=edges.renumbered(order))
    columns: dict[str, Any] = {n: getattr(rebuilt, n)[order] for n in OF_TASK}
    return replace(rebuilt, graph=graph, **columns)


OF_GRAPH = ("duration_ns", "release_ns", "kind", "rank", "resource", "row")
OF_TASK = (
    *("start_ns", "end_ns", "launch_ns", "call", "dimension", "kernel_class", "bytes"),
    *("reduces", "alone_ns", "narrow_ns"),
)
