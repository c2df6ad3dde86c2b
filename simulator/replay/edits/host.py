"""A host without collections, loading or waits, or that launches kernels together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from perfdoc.analyzers.host.calls import CallKind
from perfdoc.analyzers.host.split import LAUNCHING_MAX_NS, launching_max_ns, slow_launching_ns
from perfdoc.analyzers.kernels.optimizer import SMALL
from perfdoc.results.figures import per_cent
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Change, Edit, between_calls, with_durations, with_lags
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.table import Bool

_REMOVED_UNCERTAINTY_FRAC = 0.15
"""The removed time is measured; that nothing of it comes back elsewhere (a worker still hands its batch
over, collections are done later) is not."""


def without_host_time(what: Literal["gc", "data"], *, keep_frac: float = 0.0) -> Edit:
    """Remove it from the host's time between CUDA calls (of a CPU rank: from its pieces); the calls stay.

    keep_frac: share of it that stays.
    """

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.host[what]) and r.host_left_frac.get(what, 1.0) for r in rebuilt.ranks):
            raise ValueError(f"no range of the capture shows {what}")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        source, target = edges.source, edges.target
        order = between_calls(rebuilt)
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        pieces = np.flatnonzero(rebuilt.on_host & (graph.kind == TaskKind.HOST))
        between = np.flatnonzero(order & (lag > 0))
        of_ranks = rebuilt.by_rank(pieces), rebuilt.by_rank(target[between])
        for frame, own, own_gaps in zip(rebuilt.ranks, *of_ranks, strict=True):
            rows, gaps = pieces[own], between[own_gaps]
            inside = frame.held_ns(what, rebuilt.start_ns[rows], rebuilt.end_ns[rows])
            duration[rows] = np.maximum(duration[rows] - _gone(inside, keep_frac), 0)
            inside = frame.held_ns(what, rebuilt.end_ns[source[gaps]], rebuilt.start_ns[target[gaps]])
            lag[gaps] = np.maximum(lag[gaps] - _gone(inside, keep_frac), 0)
        left = tuple(_with_less(frame, what, keep_frac) for frame in rebuilt.ranks)
        return replace(with_durations(with_lags(rebuilt, lag), duration), ranks=left)

    return Edit(
        name=f"without {what}" if keep_frac == 0 else f"{per_cent(keep_frac, 0)} of {what}",
        apply=apply,
        uncertainty_frac=_REMOVED_UNCERTAINTY_FRAC,
        # What the host loses in it may show as launches that come late, also long after.
        leaves=("idle.host", f"idle.{what}"),
        assumptions=(f"the host does nothing instead of {what}", "CUDA calls inside it stay"),
    )


def _with_less(frame: RankFrame, what: str, keep_frac: float) -> RankFrame:
    left = frame.host_left_frac.get(what, 1.0) * keep_frac
    return replace(frame, host_left_frac={**frame.host_left_frac, what: left})


def _gone(inside_ns: I64, keep_frac: float) -> I64:
    return np.asarray(np.round(inside_ns * (1 - keep_frac)).astype(np.int64))


_GRAPHS_UNCERTAINTY_FRAC = 0.2
"""Inside a graph kernels also follow each other faster, which is not assumed; on the other hand not
everything can be captured."""
_AHEAD = ("idle.host", "idle.gc", "idle.data", "idle.dependency")
"""A host that launches in less time has its device work while it pauses, collects or loads, if these can."""
_STAYS = (CallKind.ALLOCATION, CallKind.SYNCHRONISING, CallKind.MODULE_LOAD)


def launched_together(rebuilt: Rebuilt, taken: Bool, *, rare: bool = False) -> Rebuilt:
    """Of each unbroken stretch of these calls the host takes time for the first alone. Calls that wait,
    allocate or load code break a stretch, and longer pauses than launching takes; rare: only those that are
    longer than any launching takes, where that makes a difference."""
    seldom = False
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    taken = taken & ~np.isin(rebuilt.call, _STAYS)
    source, target = edges.source, edges.target
    order = between_calls(rebuilt)
    between = order & taken[source] & taken[target]
    kept = np.zeros(len(source), np.int64)
    launches = np.flatnonzero(rebuilt.call == CallKind.LAUNCH)
    possible = np.flatnonzero(between)
    of_ranks = rebuilt.by_rank(launches), rebuilt.by_rank(target[possible])
    for rank, (frame, launched, own) in enumerate(zip(rebuilt.ranks, *of_ranks, strict=True)):
        mine, steps = possible[own], np.array([*frame.step_starts_ns, *_next_step(frame)], np.int64)
        starts = np.sort(rebuilt.start_ns[launches[launched]])
        lag_ns, computed = edges.lag_ns[mine], rebuilt.by_launch[rank]
        ends, count = rebuilt.start_ns[target[mine]], len(frame.step_starts_ns)
        slow_ns = slow_launching_ns(rebuilt.launch_ns[computed], ends, lag_ns, count)
        longest = launching_max_ns(starts, lag_ns, count, slow_ns)
        if rare:
            least, longest = longest, launching_max_ns(starts, lag_ns, 0, slow_ns)
            seldom |= bool(((lag_ns > least) & (lag_ns <= longest)).any())
        short = lag_ns <= longest
        between[mine] = short
        mine = mine[short]
        begin, end = rebuilt.start_ns[source[mine]], rebuilt.start_ns[target[mine]]
        crossed = np.searchsorted(steps, end, "right") > np.searchsorted(steps, begin, "right")
        crossed |= frame.host["data"].covered_within(begin, end) > 0
        between[mine[crossed]] = False
        kept[mine] = frame.held_ns("gc", rebuilt.end_ns[source[mine]], end)
    if rare and not seldom:
        raise ValueError("no pause of the capture is rare")
    # A call that follows one of its stretch takes no time; the first of a stretch does.
    follows = np.zeros(len(graph.duration_ns), bool)
    follows[target[between]] = True
    lag = np.where(between, np.minimum(edges.lag_ns, kept), edges.lag_ns)
    duration = np.where(follows, 0, graph.duration_ns)
    return with_durations(with_lags(rebuilt, lag), duration)


def without_launches() -> Edit:
    """Between the first and the last launch of every unbroken stretch of launches the host takes no time.

    A stretch is broken by a call that waits for the device, allocates or loads code, by data loading, by a
    longer pause than launching takes, and by a step's start. Its first launch stays as it is: it stands for
    the launch of the graph. Collections of garbage stay.
    """

    def apply(rebuilt: Rebuilt, *, rare: bool = False) -> Rebuilt:
        if not (rebuilt.call == CallKind.LAUNCH).any():
            raise ValueError("the capture shows no kernel launch")
        return launched_together(rebuilt, rebuilt.call >= 0, rare=rare)

    return Edit(
        name="launched together",
        apply=apply,
        uncertainty_frac=_GRAPHS_UNCERTAINTY_FRAC,
        leaves=("idle.host.launching", "idle.launch_latency"),
        assumptions=(
            "everything between two host synchronizations fits in one CUDA graph",
            "launching a graph takes as long as the first kernel launch that it replaces",
            "launch latency between queued kernels stays as measured",
            f"graphs take no pause of more than {LAUNCHING_MAX_NS // 10**6} ms away (1 ms where launches or "
            "such pauses are rare)",
        ),
        variants=(partial(apply, rare=True),),  # where the pauses are Python of the model
        beside=_AHEAD,
        in_part=True,
    )


def _next_step(frame: RankFrame) -> tuple[int, ...]:
    """When the step behind a part of a window begins on the host; nothing of a whole one."""
    return () if frame.host_end_ns is None else (frame.host_end_ns,)


_WAITS_UNCERTAINTY_FRAC = 0.3
"""Which of the waits the program can do without is not known; the host may not run ahead as far as it
could."""
_NO_END_NS = np.iinfo(np.int64).max
_NEVER_NS = -(1 << 50)
"""Lag of a wait that holds nothing up: days before what it waited for has ended."""


def without_waits() -> Edit:
    """The host waits for the device nowhere but in the last such call of each step. The calls stay, and take
    what they take without a wait; what the host then launches earlier, it launches into a full queue."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        edges = rebuilt.graph.edges
        waits = edges.kind == EdgeKind.HOST_SYNC
        waits[waits] &= edges.lag_ns[waits] > _NEVER_NS
        waits &= ~rebuilt.on_host[edges.target]  # a CPU rank waits for communication: it has no device
        kept = np.zeros(len(waits), bool)
        calls, waiting = np.flatnonzero(rebuilt.call == CallKind.SYNCHRONISING), np.flatnonzero(waits)
        of_ranks = rebuilt.by_rank(calls), rebuilt.by_rank(edges.target[waiting])
        for frame, own_calls, own in zip(rebuilt.ranks, *of_ranks, strict=True):
            mine = waiting[own]
            called, returned = rebuilt.start_ns[calls[own_calls]], rebuilt.start_ns[edges.target[mine]]
            after = _next_step(frame)
            for host_end in after:  # what the next step waits for is not of these
                kept[mine] |= returned >= host_end
            before = 0
            for begin, end in pairwise((*frame.step_starts_ns, *(after or (_NO_END_NS,)))):
                inside = called[(called >= begin) & (called < end)]
                # The last step has fewer where its last one lies behind the device's work, out of the window.
                if len(inside) and (end < _NO_END_NS or len(inside) >= before):
                    kept[mine] |= (returned >= inside.max()) & (returned < end)
                before = len(inside)
        if not (waits & ~kept).any():
            raise ValueError("no call of the capture waits for the device, but for one in each step")
        return with_lags(rebuilt, np.where(waits & ~kept, _NEVER_NS, edges.lag_ns))

    return Edit(
        name="without waits for the device",
        apply=apply,
        uncertainty_frac=_WAITS_UNCERTAINTY_FRAC,
        leaves=("idle.host", "idle.launch_latency"),
        assumptions=(
            "the host needs no value from the device before the end of a step",
            "the launch queue holds what the host launches ahead",
        ),
        in_part=True,
    )


_FUSED_UNCERTAINTY_FRAC = 0.2
"""A fused update takes a few launches, and moves more tensors than the least of the small kernels did."""


def fused_optimizer() -> Edit:
    """The loop's launches take the host one call, and of its kernels as much time stays as one for each
    parameter takes: it is still read and written. How many there are for each is not always known: then all
    of their time stays."""

    def apply(rebuilt: Rebuilt, *, same_kernels: bool = False) -> Rebuilt:
        inside, factor = np.zeros(len(rebuilt.start_ns), bool), np.ones(len(rebuilt.start_ns))
        every = rebuilt.by_rank(np.arange(len(inside)))
        for frame, mine in zip(rebuilt.ranks, every, strict=True):
            loop = frame.optimizer
            order = np.argsort(loop.start_ns, kind="stable")
            # Of the stretches that began, the last end.
            latest = np.concatenate(([NONE], np.maximum.accumulate(loop.end_ns[order])))
            at = rebuilt.launch_ns[mine]
            begun = np.searchsorted(loop.start_ns[order], at, "right")
            mine = mine[(begun > 0) & (at <= latest[begun])]
            inside[mine] = True
            factor[mine] = 1 / (loop.kernels_per_tensor or 1)
        if not inside.any():
            raise ValueError("no optimizer step of the capture loops over the parameters")
        edited = launched_together(rebuilt, inside & (rebuilt.call >= 0))
        if same_kernels:
            return edited
        small = inside & np.isin(rebuilt.kernel_class, SMALL)
        duration = edited.graph.duration_ns
        scaled = np.round(duration * factor).astype(np.int64)
        return with_durations(edited, np.where(small, scaled, duration))

    return Edit(
        name="fused optimizer",
        apply=apply,
        uncertainty_frac=_FUSED_UNCERTAINTY_FRAC,
        leaves=("compute", "idle.host.launching", "idle.launch_latency"),
        beside=_AHEAD,
        assumptions=(
            "a fused update is launched as fast as the first kernel that it replaces",
            "it takes as long as one of the small kernels for each parameter, or as long as all of them",
        ),
        variants=(partial(apply, same_kernels=True),),
    )


CHANGES = (
    Change(
        key="without_gc",
        title="remove garbage collection from steps",
        settings="manual_gc",
        words={"pytorch": "gc.disable, gc.collect every so many steps", "torchtitan": "training.gc_freq"},
        family="gc",
        rule="PD202",
        time="idle.gc",
        make=lambda _: without_host_time("gc"),
    ),
    Change(
        key="without_data",
        title="remove data-loader stalls",
        settings="dataloader_num_workers",
        words={
            "pytorch": "num_workers of the DataLoader",
            "transformers": "TrainingArguments(dataloader_num_workers=…)",
        },
        rule="PD203",
        time="idle.data",
        make=lambda _: without_host_time("data"),
    ),
    Change(
        key="without_launches",
        title="CUDA graphs",
        settings="cuda_graph_impl",
        words={
            "pytorch": '`torch.compile(model, mode="reduce-overhead")`, or torch.cuda.CUDAGraph',
            "transformers": 'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")',
            "vllm": "vLLM without --enforce-eager (enforce_eager=False)",
            "sglang": "SGLang without --disable-cuda-graph",
            "torchtitan": "",  # compile.enable compiles blocks and captures no graph
        },
        rule="PD201",
        time="idle.host",
        ways=({"cuda_graph_impl": "local"}, {"cuda_graph_impl": "local", "use_te_rng_tracker": True}),
        make=lambda _: without_launches(),
    ),
    Change(
        key="without_waits",
        title="remove waits for the device: .item, blocking .to, synchronize",
        rule="PD208",
        time="idle.host",
        make=lambda _: without_waits(),
    ),
    Change(
        key="fused_optimizer", title="fuse the optimizer step", rule="PD408", make=lambda _: fused_optimizer()
    ),
)
