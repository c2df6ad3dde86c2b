"""Another number of micro-batches for the same tokens: what is done once for each pass scales with it.

Of a pass some is done whatever its size (Python, launches, the least that an operator or kernel takes) and
the rest is in proportion to its tokens. With fewer, larger micro-batches the first part is done less often.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.latency import latency_of
from perfdoc.simulator.replay.edits.pipeline import with_schedule
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.4
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
            raise ValueError("no range of the capture shows the passes of micro-batches")
        stages = {r.facts.pp for r in rebuilt.ranks}
        if stages == {1}:
            return scaled_passes(rebuilt, ratio)
        if None in stages:
            raise ValueError("the number of pipeline stages is not known: give it with --set pp=N")
        return with_schedule(
            rebuilt, micro_batches=ratio, fixed_ns=[_fixed_ns(rebuilt, i) for i in range(len(rebuilt.ranks))]
        )

    return Edit(
        name=f"micro-batches x {ratio:g}",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("compute", "exposed_comm", "idle"),
        assumptions=(
            "the micro-batches fit into memory and divide the global batch",
            "beyond what the shortest operators or kernels take, compute is in proportion to tokens",
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
        raise ValueError("no operators or kernels are seen in the passes, so what is fixed cannot be told")
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
