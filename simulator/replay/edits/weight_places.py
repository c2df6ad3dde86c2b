"""In which computation gradients become ready, and which computation needs weights first.

Both as cumulative shares of a rank's parameters: the buckets of a step share them in the order of the
backward (gathers: of the forward), so that the bytes of a bucket tell which layers it holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.layout import layer_parameters, table_parameters
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import unique

F64 = NDArray[np.float64]
_CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Places:
    """One step of one rank."""

    ready: I64
    """Computations in the order in which they run; with each, the gradients of some layer are ready."""
    ready_share: F64
    """(2, ready): of all gradients those that are ready then: of everything but experts, of experts."""
    needed: I64
    """Computations in order; each is the first that needs the weights of some layer."""
    needed_share: F64
    """(2, needed): of all weights those that are needed then."""
    passes_end_ns: int
    """When the host was through with the last backward."""

    def ready_at(self, share: F64, group: int) -> I64:
        """With which computation so large a share of the gradients is ready."""
        at = np.searchsorted(self.ready_share[group] + _CLOSE, share)
        return self.ready[np.minimum(at, len(self.ready) - 1)]

    def needed_at(self, share: F64, group: int) -> I64:
        """Which computation first needs the weights behind the first `share` of them."""
        at = np.searchsorted(self.needed_share[group], share + _CLOSE)
        return self.needed[np.minimum(at, len(self.needed) - 1)]


def weight_places(rebuilt: Rebuilt, rank: int, ends_layers: float = 0.0) -> list[Places]:
    """By step of a rank whose passes the capture shows; steps without both directions are left out.

    ends_layers: how many layers' worth of parameters the first and the last layer that the capture shows hold
    in addition, where the model is not known.

    ValueError, one line, where passes are not shown, or not which chunk of the model each is of.
    """
    frame = rebuilt.ranks[rank]
    passes = frame.passes
    if not len(passes):
        raise ValueError("no range of the capture shows forward and backward passes")
    work = rebuilt.computations
    work = work[slice(*np.searchsorted(rebuilt.graph.rank[work], (rank, rank + 1)))]
    chunk = _chunks(frame)
    step = np.searchsorted(np.sort(frame.step_starts_ns), passes.start_ns, "right")
    found = []
    for number in unique(step).tolist():
        mine = np.flatnonzero(step == number)
        forward, backward = mine[passes.is_forward[mine]], mine[~passes.is_forward[mine]]
        if len(forward) and len(backward):
            first = forward[np.sort(np.unique(chunk[forward], return_index=True)[1])]
            last = np.sort(len(backward) - 1 - np.unique(chunk[backward][::-1], return_index=True)[1])
            found.append(_of_step(rebuilt, frame, work, first, backward[last], ends_layers))
    return found


def _chunks(frame: RankFrame) -> I64:
    """By pass: the first layer of its model chunk."""
    passes, layers = frame.passes, frame.layers
    chunk = np.full(len(passes), -1, np.int64)
    if len(layers):
        at = passes.at(layers.start_ns)
        low = np.full(len(passes), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(low, at[at >= 0], layers.layer[at >= 0])
        chunk = np.where(low == np.iinfo(np.int64).max, -1, low)
    if (chunk < 0).any() and (frame.facts.vpp or 1) > 1:
        raise ValueError("no range of the capture shows the layers of a pass")
    return chunk


def _of_step(
    rebuilt: Rebuilt, frame: RankFrame, work: I64, first: I64, last: I64, ends_layers: float
) -> Places:
    needed, need_weights = _places(rebuilt, frame, work, first, ends_layers, forward=True)
    ready, ready_weights = _places(rebuilt, frame, work, last, ends_layers, forward=False)
    return Places(
        ready=ready,
        ready_share=_cumulated(ready_weights),
        needed=needed,
        needed_share=_cumulated(need_weights),
        passes_end_ns=int(frame.passes.end_ns[last].max()),
    )


def _cumulated(weights: F64) -> F64:
    total = weights.sum(axis=1, keepdims=True)
    # A rank without experts: like everything else.
    weights = np.where(total > 0, weights, weights[:1])
    return np.asarray(np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True))


def _places(
    rebuilt: Rebuilt, frame: RankFrame, work: I64, passes: I64, ends_layers: float, *, forward: bool
) -> tuple[I64, F64]:
    """Of these passes, in order: the first computation of each layer (backward: the last), and its
    weights."""
    launch, ends = rebuilt.launch_ns[work], rebuilt.shown_layers
    tasks, weights = [], []
    for p in passes.tolist():
        begin, end = int(frame.passes.start_ns[p]), int(frame.passes.end_ns[p])
        inside = work[np.searchsorted(launch, begin) : np.searchsorted(launch, end)]
        if not len(inside):
            continue
        spans = frame.layers
        mine = np.flatnonzero(
            (spans.start_ns >= begin) & (spans.start_ns < end) & (spans.is_forward == forward)
        )
        layers, at = np.unique(spans.layer[mine], return_inverse=True)
        low = np.full(len(layers), np.iinfo(np.int64).max, np.int64)
        high = np.zeros(len(layers), np.int64)
        np.minimum.at(low, at, spans.start_ns[mine])
        np.maximum.at(high, at, spans.end_ns[mine])
        own = rebuilt.launch_ns[inside]
        edge = np.searchsorted(own, low) if forward else np.searchsorted(own, high) - 1
        known = (edge >= 0) & (edge < len(inside))
        if known.any():
            layers, edge = layers[known], edge[known]
            order = np.argsort(edge, kind="stable")
            layers, edge = layers[order], edge[order]
            if forward:
                edge[0] = 0
            tasks.append(inside[edge])
            weights.append(_of_layers(frame, layers, ends_layers, ends))
        else:  # evenly over the time that it computes
            tasks.append(inside)
            taken = rebuilt.graph.duration_ns[inside].astype(np.float64)
            weights.append(np.stack((taken, taken)))
    if not tasks:
        raise ValueError("the passes of the capture hold no work")
    return np.concatenate(tasks), np.concatenate(weights, axis=1)


def _of_layers(frame: RankFrame, layers: I64, ends_layers: float, ends: tuple[int, int]) -> F64:
    """Of these layers, among all of the rank."""
    every, at = np.unique(np.concatenate((layers, frame.layers.layer)), return_inverse=True)
    return layer_weights(frame.facts, every, ends_layers, ends)[:, at[: len(layers)]]


def layer_weights(
    facts: JobFacts, layers: I64, ends_layers: float = 0.0, ends: tuple[int, int] = (0, 0)
) -> F64:
    """(2, layers): parameters of everything but experts, of experts; where the model is not known one each,
    and `ends_layers` more in the layers `ends`."""
    model = facts.model
    if model is None:
        return np.tile(1 + ends_layers * np.isin(layers, ends), (2, 1))
    tp, ep = facts.tp or 1, facts.ep or 1
    found = np.array([layer_parameters(model, n, tp=tp, ep=ep) for n in layers.tolist()], np.float64).T
    table = table_parameters(model, tp=tp)
    if ep == 1:
        found[0] += found[1]  # reduced together
    found[0] += table * ((layers == 0).astype(np.float64) + (layers == model.layers - 1))
    return found


def shares_of_streams(facts: JobFacts, layers: I64, bytes_of: Mapping[int, int]) -> dict[int, int]:
    """By stream the row of Places' shares that its buckets follow: 1 for that of experts.

    bytes_of: what a stream's messages hold in a step. Where there is one stream, or the model is not known,
    all are 0.
    """
    model = facts.model
    found = dict.fromkeys(bytes_of, 0)
    if model is not None and model.experts and len(bytes_of) > 1:
        rest, experts = layer_weights(facts, unique(layers)).sum(axis=1).tolist()
        # A part for each rank of the group: that of experts is smaller by ep.
        pick = max if experts * (facts.ep or 1) > rest else min
        found[pick(bytes_of, key=lambda stream: bytes_of[stream])] = 1
    return found
