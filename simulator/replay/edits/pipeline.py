"""Another pipeline schedule: virtual stages, even stages; and passes that recompute nothing.

The passes of every stage are taken as the graph runs them, and 1F1B is laid out with them: as it is now, and
as it would be. What the phase takes beyond the first layout is the passes' own overhead (messages): the time
that, added to every pass, makes the two equal, but no more than a message takes. Every pass of the new
schedule pays it too. What is left (passes that were slower than usual) stays. The difference of the two
phases is taken out of every step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Change, Edit, between_calls, with_durations, with_lags
from perfdoc.simulator.replay.edits.pipeline_times import message_ns, overhead_ns, pipeline_of, stages_of
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import Rebuilt

VPP = "virtual_pipeline_model_parallel_size"
_UNCERTAINTY_FRAC = 0.3
"""Passes differ between micro-batches, and messages of more chunks may delay each other."""


def virtual_stages(chunks: int) -> Edit:
    """As many model chunks on every stage (1: plain 1F1B)."""
    given = chunks if chunks > 1 else None
    return Edit(
        name=f"{chunks} virtual stages on each",
        apply=lambda rebuilt: with_schedule(rebuilt, vpp=chunks),
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.pp", "idle"),
        assumptions=(
            "model chunks share a stage's layers evenly; embedding and output layer stay at the ends",
            "each pass of a model chunk has the send/recv cost of a pass now",
        ),
        variants=tuple(
            partial(with_schedule, vpp=chunks, overhead_max_ns=most) for most in (0.0, float("inf"))
        ),
        may_cost=True,
        tried_with=f", {chunks} per rank" if chunks > 1 else ", none",
        ways=({VPP: given}, {VPP: given, "overlap_p2p_comm": True}),
    )


def even_stages() -> Edit:
    """Every stage takes the mean of all, with the same work in all."""
    return Edit(
        name="stages with the same work",
        apply=lambda rebuilt: with_schedule(rebuilt, even=True),
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.pp", "idle", "compute"),
        assumptions=("layers can be split finely enough",),
        may_cost=True,
        bound=True,
    )


def with_schedule(
    rebuilt: Rebuilt, *, vpp: int | None = None, even: bool = False, overhead_max_ns: float | None = None
) -> Rebuilt:
    """The step with its pipeline phase laid out anew; raises ValueError where the capture does not show it.

    overhead_max_ns: what every pass of either schedule pays at most; a message, if not given.
    """
    now = pipeline_of(rebuilt)
    if vpp is not None:
        _check_chunks(rebuilt, len(now.forward), vpp)
    most = message_ns(rebuilt) if overhead_max_ns is None else overhead_max_ns
    overhead = min(overhead_ns(now), most)
    forward, backward, ends = now.forward, now.backward, now.ends
    if even:
        forward, backward = (tuple([sum(t) / len(t)] * len(t)) for t in (forward, backward))
        ends = ((0.0, 0.0),) * len(forward)
    if vpp is not None:
        forward, backward = (tuple(x * now.vpp / vpp for x in t) for t in (forward, backward))
    new = replace(now, vpp=vpp or now.vpp, forward=forward, backward=backward, ends=ends)
    return _shifted(rebuilt, now.starts_ns, round(now.window(overhead) - new.window(overhead)))


def _check_chunks(rebuilt: Rebuilt, pp: int, chunks: int) -> None:
    """ValueError, one line, where layers are known and are not to be spread evenly over so many chunks."""
    by_stage: dict[int, set[int]] = {}
    for stage, ranks in enumerate(stages_of(rebuilt, pp)):
        by_stage[stage] = {n for r in ranks for n in rebuilt.ranks[r].layers.layer.tolist()}
    counts = [len(layers) for layers in by_stage.values()]
    model = rebuilt.ranks[0].facts.model
    if all(counts):
        uneven = any(n % chunks for n in counts)
        layers = sum(counts)
    else:
        layers = model.layers if model is not None else 0
        uneven = bool(layers % (pp * chunks))
    if uneven:
        raise ValueError(f"{layers} layers on {pp} stages do not divide into {chunks} chunks on each")


def _shifted(rebuilt: Rebuilt, starts_ns: I64, saved_ns: int) -> Rebuilt:
    """Everything from the start of each step's phase on comes earlier by so much."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    passed = np.searchsorted(np.sort(starts_ns), rebuilt.start_ns, "right")
    lag = edges.lag_ns - saved_ns * np.maximum(passed[edges.target] - passed[edges.source], 0)
    held = graph.release_ns > NO_RELEASE
    release = np.where(held, np.where(held, graph.release_ns, 0) - saved_ns * passed, NO_RELEASE)
    return replace(rebuilt, graph=replace(graph, release_ns=release, edges=replace(edges, lag_ns=lag)))


_RECOMPUTE_UNCERTAINTY_FRAC = 0.15
"""The time is measured; kept activations have to be written and read instead."""


def without_recompute() -> Edit:
    """Forwards of layers inside a backward pass take no time: their kernels, their communication, and on the
    host their calls and what lies between them."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not any(len(r.passes.recompute) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows a forward pass of a layer inside a backward pass")
        graph, edges = rebuilt.graph, rebuilt.graph.edges
        duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
        order = between_calls(rebuilt)
        for i, frame in enumerate(rebuilt.ranks):
            known, mine = frame.passes.recompute, graph.rank == i
            if not len(known):
                continue
            at = rebuilt.launch_ns
            again = mine & (at >= 0) & (known.covered_within(at, at + 1) > 0)
            duration[again & (graph.kind != TaskKind.ARRIVAL)] = 0
            gaps = np.flatnonzero(order & mine[edges.target] & (lag > 0))
            inside = known.covered_within(
                rebuilt.end_ns[edges.source[gaps]], rebuilt.start_ns[edges.target[gaps]]
            )
            lag[gaps] = np.maximum(lag[gaps] - inside, 0)
        return with_durations(with_lags(rebuilt, lag), duration)

    return Edit(
        name="without recompute",
        apply=apply,
        uncertainty_frac=_RECOMPUTE_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=("the activations fit into memory", "writing and reading them takes no longer"),
    )


_STAGES = {
    "pytorch": "an interleaved schedule",
    "torchtitan": "pipeline_parallel_layers_per_stage, pipeline_parallel_schedule",
}


def _fewer_virtual_stages(rebuilt: Rebuilt) -> Edit | None:
    chunks = rebuilt.ranks[0].facts.vpp or 1
    return None if chunks == 1 else virtual_stages(chunks // 2 if chunks % 2 == 0 else 1)


CHANGES = (
    Change(
        key="without_recompute",
        title="remove activation recompute",
        settings="recompute_granularity",
        words={
            "pytorch": "torch.utils.checkpoint",
            "torchtitan": "activation_checkpoint.mode",
            "accelerate's FSDP": "fsdp_activation_checkpointing",
            "verl's FSDP": "enable_gradient_checkpointing",
        },
        rule="PD504",
        ways=({"recompute_granularity": None},),
        make=lambda _: without_recompute(),
    ),
    Change(
        key="more_virtual_stages",
        title="more virtual stages{}",
        settings=VPP,
        words=_STAGES,
        family="schedule",
        rule="PD301",
        time="pipeline.bubble",
        make=lambda rebuilt: virtual_stages(2 * (rebuilt.ranks[0].facts.vpp or 1)),
    ),
    Change(
        key="fewer_virtual_stages",
        title="fewer virtual stages{}",
        settings=VPP,
        words=_STAGES,
        family="schedule",
        rule="PD304",
        time="pipeline.transfer",
        make=_fewer_virtual_stages,
    ),
    Change(
        key="even_stages",
        title="perfectly balanced stages",
        family="schedule",
        rule="PD305",
        time="pipeline.late_peer",
        make=lambda _: even_stages(),
    ),
)
