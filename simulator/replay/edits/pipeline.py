"""Another pipeline schedule: virtual stages, even stages, other numbers of micro-batches.

The passes of every stage are taken as the graph runs them, and 1F1B is laid out with them: as it is now, and
as it would be. What the phase takes beyond the first layout is the passes' own overhead (messages): the time
that, added to every pass, makes the two equal, but no more than a message takes. Every pass of the new
schedule pays it too. What is left (passes that were slower than usual) stays. The difference of the two
phases is taken out of every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.pipeline_times import message_ns, overhead_ns, pipeline_of, stages_of
from perfdoc.simulator.replay.rank_tasks import NO_RELEASE
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 0.3
"""Passes differ between micro-batches, and messages of more chunks may delay each other."""


def virtual_stages(chunks: int) -> Edit:
    """As many model chunks on every stage (1: plain 1F1B). ValueError below 1."""
    if chunks < 1:
        raise ValueError(f"virtual_stages: {chunks} chunks")
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
    )


def with_schedule(
    rebuilt: Rebuilt,
    *,
    vpp: int | None = None,
    even: bool = False,
    micro_batches: float = 1.0,
    fixed_ns: Sequence[tuple[float, float]] | None = None,
    overhead_max_ns: float | None = None,
) -> Rebuilt:
    """The step with its pipeline phase laid out anew; raises ValueError where the capture does not show it.

    micro_batches: ratio of their new number to the old. fixed_ns: by rank, what of a forward and a backward
    is the same whatever the size of a micro-batch; the rest scales. overhead_max_ns: what every pass of
    either schedule pays at most; a message, if not given.
    """
    now = pipeline_of(rebuilt)
    if vpp is not None:
        _check_chunks(rebuilt, len(now.forward), vpp)
    most = message_ns(rebuilt) if overhead_max_ns is None else overhead_max_ns
    overhead = min(overhead_ns(now), most)
    forward, backward, ends = now.forward, now.backward, now.ends
    if micro_batches != 1:
        fixed = [
            [
                float(np.mean([fixed_ns[r][k] for r in ranks])) if fixed_ns else 0.0
                for ranks in now.ranks_of_stage
            ]
            for k in (0, 1)
        ]
        forward, backward = (
            tuple(min(f, t) + (t - min(f, t)) / micro_batches for f, t in zip(own, took, strict=True))
            for own, took in zip(fixed, (forward, backward), strict=True)
        )
    if even:
        forward, backward = (tuple([sum(t) / len(t)] * len(t)) for t in (forward, backward))
        ends = ((0.0, 0.0),) * len(forward)
    if vpp is not None:
        forward, backward = (tuple(x * now.vpp / vpp for x in t) for t in (forward, backward))
    count = round(now.micro_batches * micro_batches)
    if count < 1 or abs(count - now.micro_batches * micro_batches) > 1e-6:
        raise ValueError(f"{now.micro_batches} x {micro_batches:g} is not a whole number of micro-batches")
    new = replace(now, vpp=vpp or now.vpp, micro_batches=count, forward=forward, backward=backward, ends=ends)
    rest = now.phase - now.window(overhead)
    saved = now.phase - (new.window(overhead) + rest)
    return _shifted(rebuilt, now.starts_ns, round(saved))


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
