"""What rules about one dimension's exposed communication have in common."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.case import Case
from perfdoc.rules.rule import Evidence, Verdict

MIN_FRAC = 0.05
"""Of the window, mean over ranks: less exposed communication than this is left alone."""


def exposed_ns(dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication of a dimension."""
    return lambda rank: rank.ledger.exposed_comm_ns[dimension]


def judged(case: Case, dimension: str) -> tuple[Verdict | None, list[Evidence]]:
    """The verdict where there is nothing to advise, else None; and the figures."""
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    share = case.share(exposed_ns(dimension))
    if share is None:
        return Verdict(state="skipped", reason="every window is empty"), []
    if not rows:
        unknown = case.share(exposed_ns("unknown")) or 0.0
        if unknown >= MIN_FRAC:
            reason = f"{unknown:.1%} of the time is exposed communication of unknown dimension"
            return Verdict(state="skipped", reason=reason), []
        return Verdict(state="not_applicable", reason=f"no {dimension.upper()} communication was seen"), []
    evidence = [
        Evidence(label=f"exposed {dimension.upper()} communication, mean over ranks", value=f"{share:.1%}")
    ]
    if (ms := case.per_step_ms(exposed_ns(dimension))) is not None:
        evidence.append(Evidence(label="of a step", value=f"{ms:.3g} ms"))
    total = sum(row.total_ns for row in rows)
    if total:
        hidden = 1 - sum(row.exposed_ns for row in rows) / total
        evidence.append(Evidence(label="of this communication hidden by compute", value=f"{hidden:.0%}"))
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence), evidence
    return None, evidence
