"""What an edit is, and what edits share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from perfdoc.simulator.engine import EdgeKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change, and what is assumed with it."""

    name: str
    apply: Callable[[Rebuilt], Rebuilt]
    """Pure. May raise ValueError, one line for the user, where the capture does not hold what it needs."""
    uncertainty_frac: float
    """Share of the gain by which it may be off either way, the replay's error aside. A judgement: each edit
    says why."""
    leaves: tuple[str, ...]
    """Ledger leaves that the gain comes out of: `compute`, `exposed_memcpy`, `exposed_comm.dp`, `idle.gc`;
    `exposed_comm` and `idle` are all of theirs, `idle.host.launching` is what of idle.host launching causes.
    The gain is not above their sum."""
    assumptions: tuple[str, ...]
    variants: tuple[Callable[[Rebuilt], Rebuilt], ...] = ()
    """The same change where what it assumes is otherwise, either way; the band spans their gains too."""
    in_part: bool = False
    """Whether jobs get a part of it, as a rule: where the leaves end its band, that is not its middle."""
    may_cost: bool = False
    """Whether the change may make a step longer: it adds work or waiting as well as taking some away. The
    band of any other ends at nothing."""


def with_durations(rebuilt: Rebuilt, duration_ns: I64) -> Rebuilt:
    """Other durations. What a call launches keeps its distance from the call's start as far as the shorter
    call allows; everything else keeps its distance from the end of what it waits for."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    saved = (graph.duration_ns - duration_ns)[edges.source]
    launch = (edges.kind == EdgeKind.LAUNCH) & (saved > 0)
    before = graph.duration_ns[edges.source] + edges.lag_ns
    after = np.minimum(before, np.maximum(before - saved, 0))
    lag = np.where(launch, after - duration_ns[edges.source], edges.lag_ns)
    edges = replace(edges, lag_ns=lag)
    return replace(rebuilt, graph=replace(graph, duration_ns=duration_ns, edges=edges))


def with_lags(rebuilt: Rebuilt, lag_ns: I64) -> Rebuilt:
    """Other lags."""
    edges = replace(rebuilt.graph.edges, lag_ns=lag_ns)
    return replace(rebuilt, graph=replace(rebuilt.graph, edges=edges))
