"""Other micro-batches for the same tokens; and tensor parallelism, where every rank computes more of them.

Of a pass some is done whatever its size (Python, launches, the least that an operator or kernel takes) and
the rest is in proportion to its tokens. With fewer, larger micro-batches the first part is done less often.

With n tensor-parallel ranks each computes n times as many passes of 1 / n of the width: the same arithmetic,
but n times what a pass costs whatever its width. Gradients and weights are no longer exchanged; instead every
layer of every pass reduces its activations twice, and every pass those at its end and the loss, and waits for
it.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.latency import latency_of, line_of
from perfdoc.simulator.replay.edits.pipeline import with_schedule
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.table import Bool

_TOKENS_UNCERTAINTY_FRAC = 0.4
"""That a kernel's rest is in proportion to tokens is a guess: small ones use a device worse, and on a CPU
larger ones leave its caches."""
_LEAST_PERCENTILE = 10
_TASKS_MIN = 10
"""In a pass, on average: fewer are ranges and not operators or kernels, so the shortest tells nothing."""
_INSIDE_A_PASS = ("tp", "cp", "ep", "pp")


def micro_batches(ratio: float) -> Edit:
    """`ratio` times as many micro-batches of 1 / ratio of the size, so the same tokens in a step.

    With pipeline stages the schedule is laid out anew as well. ValueError unless the ratio is above 0.
    """
    if not ratio > 0:
        raise ValueError(f"micro_batches: ratio {ratio} is not above 0")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        if not all(len(r.passes) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows forward and backward passes")
        stages = {r.facts.pp for r in rebuilt.ranks}
        if stages == {1}:
            return scaled_passes(rebuilt, ratio)
        if None in stages:
            raise ValueError("the number of pipeline stages is unknown: give --set pp=N")
        return with_schedule(
            rebuilt, micro_batches=ratio, fixed_ns=[_fixed_ns(rebuilt, i) for i in range(len(rebuilt.ranks))]
        )

    return Edit(
        name=f"micro-batches x {ratio:g}",
        apply=apply,
        uncertainty_frac=_TOKENS_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=(
            "the micro-batches fit into memory and divide the global batch",
            "compute beyond the shortest operators or kernels is proportional to tokens",
        ),
        may_cost=True,
    )


def scaled_passes(rebuilt: Rebuilt, ratio: float) -> Rebuilt:
    """Passes in which what is the same whatever a micro-batch's size takes `ratio` times as long."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
    order = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER))
    inside = in_pass(rebuilt)
    host = inside & (graph.kind == TaskKind.HOST)
    duration[host] = np.round(graph.duration_ns[host] * ratio).astype(np.int64)
    between = order & inside[edges.source] & inside[edges.target] & (lag > 0)
    lag[between] = np.round(lag[between] * ratio).astype(np.int64)
    for i in range(len(rebuilt.ranks)):
        rows = np.flatnonzero(inside & (graph.kind == TaskKind.COMPUTE) & (graph.rank == i))
        duration[rows] = _changed(graph.duration_ns[rows], _least(rebuilt, i), ratio)
    for dimension in _INSIDE_A_PASS:
        rows = np.flatnonzero(
            inside
            & (graph.kind == TaskKind.COMMUNICATION)
            & (rebuilt.dimension == DIMENSIONS.index(dimension))
        )
        if len(rows):
            try:
                latency_ns = latency_of(rebuilt, dimension)
            except ValueError:
                continue  # one size: all in proportion to bytes
            duration[rows] = _changed(graph.duration_ns[rows], latency_ns, ratio)
    return with_durations(with_lags(rebuilt, lag), duration)


def _changed(duration_ns: I64, fixed_ns: float, ratio: float) -> I64:
    fixed = np.minimum(fixed_ns, duration_ns)
    changed: I64 = np.round(duration_ns - fixed + fixed * ratio).astype(np.int64)
    return changed


def in_pass(rebuilt: Rebuilt) -> Bool:
    """By task: whether it was launched in a pass."""
    inside = np.zeros(len(rebuilt.start_ns), bool)
    for i, frame in enumerate(rebuilt.ranks):
        mine = np.flatnonzero(rebuilt.graph.rank == i)
        inside[mine] = frame.passes.at(rebuilt.launch_ns[mine]) >= 0
    return inside


def _least(rebuilt: Rebuilt, rank: int) -> float:
    """What the shortest operators (on a CPU rank: pieces of them) or kernels of a rank's passes take."""
    graph = rebuilt.graph
    mine = (graph.kind == TaskKind.COMPUTE) & (graph.rank == rank) & in_pass(rebuilt)
    took = graph.duration_ns[mine]
    took = took[took > 0]
    if len(took) < _TASKS_MIN * len(rebuilt.ranks[rank].passes):
        raise ValueError("no operators or kernels in the passes: the fixed part of their time is unknown")
    return float(np.percentile(took, _LEAST_PERCENTILE))


def _fixed_ns(rebuilt: Rebuilt, rank: int) -> tuple[float, float]:
    """What a forward and a backward pass take whatever their size; the mean."""
    graph, frame = rebuilt.graph, rebuilt.ranks[rank]
    least = _least(rebuilt, rank)
    rows = np.flatnonzero((graph.rank == rank) & (rebuilt.launch_ns >= 0))
    at = frame.passes.at(rebuilt.launch_ns[rows])
    rows, at = rows[at >= 0], at[at >= 0]
    own = np.where(
        graph.kind[rows] == TaskKind.COMPUTE,
        np.minimum(graph.duration_ns[rows], least),
        np.where((graph.kind[rows] == TaskKind.HOST) & rebuilt.on_host[rows], graph.duration_ns[rows], 0),
    )
    total = np.bincount(at, own, len(frame.passes))
    forward = frame.passes.is_forward
    return tuple(float(total[f].mean()) if f.any() else 0.0 for f in (forward, ~forward))  # type: ignore[return-value]


_WIDTH_UNCERTAINTY_FRAC = 0.5
"""Narrow GEMMs use a device worse; norms and other work that is not split run n times as often; and
an all-reduce is taken to move twice what the capture's messages of the same size do."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
_REDUCTIONS_PER_LAYER = 2
_AT_THE_END = 1
"""Of a pass: the embedding's output in the forward, the output layer's input gradient in the backward."""
_OF_THE_LOSS = 3
"""In the forward, over the parts of the vocabulary: the largest logit, the right one, the sum; a number for
each token, so all latency."""


def tensor_instead_of_data() -> Edit:
    """dp = n, tp = 1 to dp = 1, tp = n, the micro-batch's size and the global batch as they are."""

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        facts = rebuilt.ranks[0].facts
        if facts.model is None or facts.dp is None:
            raise ValueError("the model and the layout are unknown: give them with --config or --set")
        if facts.dp < 2 or (facts.tp, facts.pp) != (1, 1):
            raise ValueError("the layout is not pure data parallelism")
        if not all(len(r.passes) for r in rebuilt.ranks):
            raise ValueError("no range of the capture shows forward and backward passes")
        latency_ns, ns_per_byte = line_of(rebuilt, "dp")
        size = _activation_bytes(rebuilt.ranks[0])
        reduction_ns = latency_ns + 2 * ns_per_byte * size
        of_pass = facts.model.layers * _REDUCTIONS_PER_LAYER + _AT_THE_END
        made = scaled_passes(rebuilt, float(facts.dp))
        graph = made.graph
        duration = graph.duration_ns.copy()
        exchanged = (graph.kind == TaskKind.COMMUNICATION) & (made.dimension == DIMENSIONS.index("dp"))
        duration[exchanged] = 0
        inside = np.flatnonzero(in_pass(made) & (graph.kind == TaskKind.COMPUTE))
        for i, frame in enumerate(made.ranks):
            mine = inside[graph.rank[inside] == i]
            at = frame.passes.at(made.launch_ns[mine])
            # The first computation of every pass stands for its reductions too.
            which, first = np.unique(at, return_index=True)
            loss_ns = np.where(frame.passes.is_forward[which], _OF_THE_LOSS * latency_ns, 0.0)
            duration[mine[first]] += np.round((of_pass * reduction_ns + loss_ns) * facts.dp).astype(np.int64)
        return with_durations(made, duration)

    return Edit(
        name="tensor parallelism instead of data parallelism",
        apply=apply,
        uncertainty_frac=_WIDTH_UNCERTAINTY_FRAC,
        leaves=("exposed_comm", "compute", "idle"),
        assumptions=(
            "GEMMs of 1 / n of the width take 1 / n of the time",
            "an all-reduce of activations takes the latency and twice the time per byte of the dp messages",
            "every rank waits for each reduction",
        ),
        may_cost=True,
    )


def _activation_bytes(frame: RankFrame) -> int:
    """Of one micro-batch between two layers."""
    facts = frame.facts
    model, sequences, length = facts.model, facts.micro_batch_sequences, facts.sequence_length
    width = _BYTES.get(facts.dtype or "", 0)
    if model is None or sequences is None or length is None or not width:
        raise ValueError("micro-batch size, sequence length and dtype are unknown: give them with --set")
    return sequences * length * model.hidden_size * width
