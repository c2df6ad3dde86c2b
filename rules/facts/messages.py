"""Exposed communication by collective and by message size, over several dimensions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from perfdoc.analyzers.communication.table import BOUNDS_BYTES, SMALL_BYTES
from perfdoc.results.figures import brief, per_cent, size
from perfdoc.results.ranks import Communication
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case

MANY = 50
"""Operations of one collective a step: a model's gradients fit in fewer buckets."""
SHORT_NS = 100_000
"""Mean duration up to which operations of unknown size count as small."""


SMALL_COST_FRAC = 0.25
"""Of a collective's exposed time: with less, small messages do not cost it."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """One collective of some dimensions, all ranks together, by step (or by window without steps)."""

    collective: str
    count: float
    exposed_ns: float
    total_ns: float
    small: float | None
    """Of at most SMALL_BYTES; None where no size is known."""
    sizes: dict[int | None, tuple[float, float]]
    """Upper bound of a class of size: count and exposed time."""

    @property
    def words(self) -> str:
        """As it is written: all-reduce."""
        return _WORDS.get(self.collective, self.collective.replace("_", "-")) or "unnamed communication"

    @property
    def hidden_frac(self) -> float:
        """Hidden share."""
        return 1 - self.exposed_ns / self.total_ns if self.total_ns else 0.0

    @property
    def are_many_small(self) -> bool:
        """Whether most are so small that they take their latency, and they are many."""
        if self.count < MANY:
            return False
        if self.small is not None:
            cost = sum(ns for most, (_, ns) in self.sizes.items() if _is_small(most))
            return self.small >= self.count / 2 and cost >= SMALL_COST_FRAC * self.exposed_ns
        return self.total_ns <= SHORT_NS * self.count


_WORDS = {"send_recv": "send/recv", "peer_copy": "copies between GPUs", "sync": "barriers"}


def _is_small(most_bytes: int | None) -> bool:
    return most_bytes is not None and most_bytes <= SMALL_BYTES


def messages(case: Case, dimensions: Collection[str]) -> list[Messages]:
    """By falling exposed time, mean over ranks. Rows that overlap in time count twice."""
    rows: dict[str, list[Communication]] = {}
    for row in (row for rank in case.ranks for row in rank.communication):
        if row.dimension in dimensions:
            rows.setdefault(row.collective, []).append(row)
    by_step = case.unit == "step"
    per = sum(r.window.steps for r in case.ranks) if by_step else len(case.ranks)
    found = [_together(collective, mine, max(1, per)) for collective, mine in rows.items()]
    return sorted(found, key=lambda m: -m.exposed_ns)


def _together(collective: str, rows: list[Communication], per: int) -> Messages:
    sizes: dict[int | None, tuple[float, float]] = {}
    for one in (one for row in rows for one in row.sizes):
        count, exposed = sizes.get(one.most_bytes, (0.0, 0.0))
        sizes[one.most_bytes] = count + one.count / per, exposed + one.exposed_ns / per
    small = sum(n for most, (n, _) in sizes.items() if _is_small(most))
    return Messages(
        collective=collective,
        count=sum(r.count for r in rows) / per,
        exposed_ns=sum(r.exposed_ns for r in rows) / per,
        total_ns=sum(r.total_ns for r in rows) / per,
        small=small if sizes else None,
        sizes=dict(sorted(sizes.items(), key=lambda s: (s[0] is None, s[0] or 0))),
    )


def message_evidence(case: Case, found: Collection[Messages]) -> list[Evidence]:
    """Two lines a collective: how many, exposed and hidden; and by size where sizes are known."""
    evidence = []
    for one in found:
        each = f"{one.count:,.0f} a {case.unit}"
        hidden = f"{per_cent(one.hidden_frac, 0)} hidden"
        value = f"{each}, {brief(one.exposed_ns)} exposed, {hidden}"
        evidence.append(Evidence(label=one.words, value=value))
        if one.sizes:
            evidence.append(Evidence(label=f"{one.words}, by message size", value=_by_size(one)))
    return evidence


def _by_size(one: Messages) -> str:
    over = f"over {size(BOUNDS_BYTES[-1])}"
    return "; ".join(
        f"{count:,.0f} {over if most is None else f'up to {size(most)}'}: {brief(exposed)}"
        for most, (count, exposed) in one.sizes.items()
    )
