"""A change that is tried on every capture, the edit that makes it, and what edits share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from perfdoc.records import dataclass
from perfdoc.simulator.engine import EdgeKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

Value: TypeAlias = bool | int | str | None
"""Of a setting."""
Ways: TypeAlias = tuple[Mapping[str, Value], ...]
"""Settings that make a change, by canonical id, the switch first, then what it needs; any will do."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change with its parameters, and what is assumed with it."""

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
    beside: tuple[str, ...] = ()
    """Leaves that what it gains above those may come out of, or that of a variant: the upper end alone."""
    in_part: bool = False
    """Whether jobs get a part of it, as a rule: where the leaves end its band, that is not its middle."""
    may_cost: bool = False
    """Whether the change may make a step longer: it adds work or waiting as well as taking some away. The
    band of any other ends at nothing."""
    bound: bool = False
    """Whether no setting does just this: an upper bound that is combined with nothing."""
    tried_with: str = ""
    """Its parameters, as the title of its change shows them."""
    late: tuple[str, str] | None = None
    """(name, dimension) of the rank that it takes the lateness of."""
    ways: Ways | None = None
    """None: those of its change."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a diagnosis knows of a change: declared once, beside its edit."""

    key: str
    """Stable name of its prediction."""
    title: str
    """{} is what it was tried with."""
    settings: str = ""
    """In brackets behind the title: ids of the settings that make it."""
    words: Mapping[str, str] = field(default_factory=dict)
    """What stands in the brackets, by how the job is run (see rules/engine/job_words.py); nothing where it
    is empty or not listed."""
    family: str = ""
    """At most one of a family can be chosen; of a change without, itself."""
    rule: str
    """Code of the rule that judges what it takes away."""
    time: str = ""
    """The time that it takes away, as `Meta.time` of rules names it; a change of kernels has none."""
    exact: bool = True
    """False where training computes something else with it (a narrower type)."""
    ways: Ways = ()
    make: Callable[[Rebuilt], Edit | None]
    """The edit with its usual parameters for a step; None where the step has nothing of the kind. ValueError,
    one line, where it lacks what they are chosen from."""

    def titled(self, tried_with: str = "") -> str:
        """The title, for people."""
        # Not str.format: names of ranks come from traces.
        before, hole, after = self.title.partition("{}")
        settings = f" ({self.settings})" if self.settings else ""
        return (before + tried_with + after if hole else before) + settings


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change that is tried on a step."""

    of: Change
    edit: Edit | None
    reason: str = ""
    """Why there is no edit."""

    @property
    def key(self) -> str:
        """Of its prediction."""
        return self.of.key

    @property
    def family(self) -> str:
        """At most one of a family can be chosen."""
        return self.of.family or self.of.key

    @property
    def change(self) -> str:
        """Its title, for people."""
        return self.of.titled("" if self.edit is None else self.edit.tried_with)

    @property
    def ways(self) -> Ways:
        """Settings that make it."""
        own = None if self.edit is None else self.edit.ways
        return self.of.ways if own is None else own


def with_durations(rebuilt: Rebuilt, duration_ns: I64) -> Rebuilt:
    """Other durations. What a call launches keeps its distance from the call's start as far as the shorter
    call allows; everything else keeps its distance from the end of what it waits for."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    launch = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)
    source, lag = edges.source[launch], edges.lag_ns.copy()
    saved = (graph.duration_ns - duration_ns)[source]
    before = graph.duration_ns[source] + lag[launch]
    after = np.minimum(before, np.maximum(before - saved, 0)) - duration_ns[source]
    lag[launch] = np.where(saved > 0, after, lag[launch])
    edges = replace(edges, lag_ns=lag)
    return replace(rebuilt, graph=replace(graph, duration_ns=duration_ns, edges=edges))


def with_lags(rebuilt: Rebuilt, lag_ns: I64) -> Rebuilt:
    """Other lags."""
    edges = replace(rebuilt.graph.edges, lag_ns=lag_ns)
    return replace(rebuilt, graph=replace(rebuilt.graph, edges=edges))


def between_calls(rebuilt: Rebuilt) -> Bool:
    """By edge: whether its lag is what the host did between two calls."""
    kind = rebuilt.graph.edges.kind
    return np.asarray((kind == EdgeKind.HOST_ORDER) | (kind == EdgeKind.HOST_HANDOVER))
