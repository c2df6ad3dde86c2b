"""Layers moved between the stages of a pipeline: every stage's layers take as much more or less time.

A pass takes what its layers take times the ratio of their new number to the old, with its kernels, its
communication and the host's work for them; what is no layer (embedding, output) stays. Gradients, weights and
the optimizer's work grow with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.messages import beyond_latency, latency_of_any
from perfdoc.simulator.replay.edits.rewiring import is_transfer
from perfdoc.simulator.replay.edits.weight_places import layer_weights
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.1
"""Layers differ a little; the replay runs the schedule unchanged."""
_LEAST_BYTES = 1024
_NOT_ALL = "not every pipeline stage is among the joined ranks"
_CHUNKS_MOST = 4096
Place = tuple[int, int]
"""(stage, chunk)."""


def even_layers() -> Edit:
    """As many layers in every chunk of every stage; where they cannot be, one more in the first ones."""
    return _edit("equal number of layers per stage", _even)


def balanced_layers() -> Edit:
    """Layers spread so that the stage with most to do has as little as can be, embedding and output counted;
    all of a stage's layers in one chunk (no interleaving)."""
    return _edit("layers balanced by stage time", _balanced)


def _edit(name: str, chosen: Callable[[Rebuilt, Mapping[Place, int]], Mapping[Place, int]]) -> Edit:
    return Edit(
        name=name,
        apply=lambda rebuilt: _spread(rebuilt, chosen(rebuilt, _counts(rebuilt))),
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm", "idle", "compute"),
        assumptions=("a moved layer takes the time of the layers of its new stage", "memory allows it"),
        may_cost=True,
    )


def _even(rebuilt: Rebuilt, now: Mapping[Place, int]) -> dict[Place, int]:
    places = sorted(now, key=lambda p: (p[1], p[0]))
    each, rest = divmod(sum(now.values()), len(places))
    return {p: each + (i < rest) for i, p in enumerate(places)}


def _balanced(rebuilt: Rebuilt, now: Mapping[Place, int]) -> dict[Place, int]:
    """The least time of the slowest stage such that all layers find a place, by halving."""
    if any(chunk for _, chunk in now):
        raise ValueError("stages have several model chunks: single layers cannot be moved")
    layer, rest = _stage_times(rebuilt, now)
    stages, total = sorted(layer), sum(now.values())
    low, high = max(rest.values()), max(rest[s] + layer[s] * now[s, 0] for s in stages)
    for _ in range(50):
        middle = (low + high) / 2
        held = sum(max(int((middle - rest[s]) / layer[s] + 1e-9), 0) for s in stages)
        low, high = (low, middle) if held >= total else (middle, high)
    room = [max(int((high - rest[s]) / layer[s] + 1e-9), 0) for s in stages]
    # What is too many goes from where the most time is.
    while sum(room) > total:
        most = max(range(len(room)), key=lambda i: rest[stages[i]] + layer[stages[i]] * room[i])
        room[most] -= 1
    if min(room) < 1:
        raise ValueError("a stage would have no layers")
    return {(s, 0): n for s, n in zip(stages, room, strict=True)}


def _stage_times(rebuilt: Rebuilt, now: Mapping[Place, int]) -> tuple[dict[int, float], dict[int, float]]:
    """By stage, mean over its ranks: computation in a layer, and outside of layers in the passes; over all
    passes of the window."""
    graph = rebuilt.graph
    computes = (graph.kind == TaskKind.COMPUTE) & (rebuilt.launch_ns >= 0)
    layer: dict[int, list[float]] = {}
    rest: dict[int, list[float]] = {}
    for i, frame in enumerate(rebuilt.ranks):
        stage = _stage(frame)
        mine = np.flatnonzero(computes & (graph.rank == i))
        at = rebuilt.launch_ns[mine]
        inside = frame.layers.at(at) >= 0
        in_pass = frame.passes.at(at) >= 0
        took = graph.duration_ns[mine]
        layer.setdefault(stage, []).append(float(took[inside].sum()) / now[stage, 0])
        rest.setdefault(stage, []).append(float(took[in_pass & ~inside].sum()))
    if any(min(times) <= 0 for times in layer.values()):
        raise ValueError("a stage of the capture has no compute in its layers")
    return tuple({s: sum(t) / len(t) for s, t in of.items()} for of in (layer, rest))  # type: ignore[return-value]


def _stage(frame: RankFrame) -> int:
    facts = frame.facts
    if not facts.pp or not facts.world_size or frame.rank is None or facts.world_size % facts.pp:
        raise ValueError("the pipeline stage of each rank is unknown: give --set pp=N")
    if facts.pp < 2:
        raise ValueError("the job has one pipeline stage")
    return frame.rank // (facts.world_size // facts.pp)


def _chunk_layers(frame: RankFrame) -> list[I64]:
    """Layers of each chunk of a rank: those that one pass runs."""
    spans = frame.layers
    at = frame.passes.at(spans.start_ns)
    known = at >= 0
    if not known.any():
        raise ValueError("no range of the capture shows the layers of a pass")
    pairs = np.unique(np.stack((at[known], spans.layer[known])), axis=1)
    chunks = {tuple(part.tolist()) for part in np.split(pairs[1], np.flatnonzero(np.diff(pairs[0])) + 1)}
    found = sorted(chunks)
    if len(set().union(*found)) != sum(map(len, found)):
        raise ValueError("passes of one model chunk show different layers")
    return [np.array(c, np.int64) for c in found]


def _counts(rebuilt: Rebuilt) -> dict[Place, int]:
    """Layers by place. ValueError where the capture does not show every stage's."""
    found: dict[Place, int] = {}
    stages = rebuilt.ranks[0].facts.pp or 0
    if stages > len(rebuilt.ranks):  # which may be any number, if somebody gave it
        raise ValueError(_NOT_ALL)
    for frame in rebuilt.ranks:
        stage = _stage(frame)
        for chunk, layers in enumerate(_chunk_layers(frame)):
            if found.setdefault((stage, chunk), len(layers)) != len(layers):
                raise ValueError(f"ranks of stage {stage} show different numbers of layers")
    chunks = {sum(1 for s, _ in found if s == stage) for stage in range(stages)}
    if len(chunks) != 1 or len(found) > _CHUNKS_MOST:
        raise ValueError(_NOT_ALL)
    return found


def _spread(rebuilt: Rebuilt, wanted: Mapping[Place, int]) -> Rebuilt:
    now = _counts(rebuilt)
    if dict(now) == dict(wanted):
        raise ValueError("the layers are already spread this way")
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    factor = np.ones(len(rebuilt.start_ns))
    weights = np.ones(len(rebuilt.ranks))
    order = sorted(wanted, key=lambda p: (p[1], p[0]))
    ends = dict(zip(order, accumulate(wanted[p] for p in order), strict=True))
    for i, frame in enumerate(rebuilt.ranks):
        stage = _stage(frame)
        mine = np.flatnonzero((graph.rank == i) & (rebuilt.launch_ns >= 0))
        layer = frame.layers.at(rebuilt.launch_ns[mine])
        had, has = [], []
        for chunk, layers in enumerate(_chunk_layers(frame)):
            ratio = wanted[stage, chunk] / len(layers)
            factor[mine[np.isin(layer, layers)]] = ratio
            had.append(layers)
            end = ends[stage, chunk]
            has.append(np.arange(end - wanted[stage, chunk], end))
        weights[i] = _held(frame, has) / _held(frame, had)
    weights_of = is_transfer(rebuilt, "dp") & (rebuilt.bytes >= _LEAST_BYTES)
    factor[np.isin(graph.kind, (TaskKind.ARRIVAL, TaskKind.MEETING)) | weights_of] = 1
    duration = np.round(graph.duration_ns * factor)
    grown = beyond_latency(graph.duration_ns, latency_of_any(rebuilt, "dp"), weights[graph.rank])
    duration = np.where(weights_of, grown, duration)
    updates = _updates(rebuilt)
    duration = np.where(updates, graph.duration_ns * weights[graph.rank], duration)
    gaps = (edges.lag_ns > 0) & (edges.kind != EdgeKind.HOST_SYNC)
    lag = np.where(gaps, np.round(edges.lag_ns * factor[edges.target]), edges.lag_ns).astype(np.int64)
    return with_durations(with_lags(rebuilt, lag), np.round(duration).astype(np.int64))


def _held(frame: RankFrame, layers: Sequence[I64]) -> float:
    """Parameters of these layers."""
    found: NDArray[np.float64] = layer_weights(frame.facts, np.concatenate(layers))
    return float(found.sum())


def _updates(rebuilt: Rebuilt) -> Bool:
    """By task: computation launched by an optimizer."""
    graph = rebuilt.graph
    found = np.zeros(len(rebuilt.start_ns), bool)
    for i, frame in enumerate(rebuilt.ranks):
        bounds = np.concatenate((frame.step_starts_ns, frame.optimizer_starts_ns)).astype(np.int64)
        updates = np.repeat((False, True), (len(frame.step_starts_ns), len(frame.optimizer_starts_ns)))
        order = np.argsort(bounds, kind="stable")
        mine = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.rank == i) & (rebuilt.launch_ns >= 0))
        at = np.searchsorted(bounds[order], rebuilt.launch_ns[mine], "right") - 1
        found[mine] = (at >= 0) & np.append(updates[order], False)[at]
    return found


def _of_stages(key: str, title: str, make: Callable[[], Edit]) -> Change:
    return Change(
        key=key,
        title=title,
        family="schedule",
        rule="PD305",
        time="pipeline.late_peer",
        make=lambda _: make(),
    )


CHANGES = (
    _of_stages("even_layers", "equal number of layers per stage", even_layers),
    _of_stages("balanced_layers", "layers balanced by stage time", balanced_layers),
)
