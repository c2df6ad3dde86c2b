"""Exposed and hidden communication of one dimension, for the rules about it."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.communication.dimensions import USES
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, predicted, time_evidence
from perfdoc.rules.engine.needs import Missing, Need, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Level, Verdict

MIN_FRAC = 0.05
"""Of the window, mean over ranks: less exposed communication is no finding."""


def exposed_ns(dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication of a dimension."""
    return lambda rank: rank.ledger.exposed_comm.by_name[dimension]


def transfer_ns(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication less its waiting for late ranks, as far as that was measured.

    Without the late ranks a collective would have ended earlier by the wait, however much of it was hidden:
    all of the wait is subtracted from the exposed time, down to 0.
    """
    wait = waited_ns(case, dimension)
    return lambda rank: max(0, rank.ledger.exposed_comm.by_name[dimension] - wait(rank))


def waited_ns(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's waiting for late ranks in collectives of a dimension; 0 if not measured."""
    wait = {w.name: w.wait_ns for w in case.job.skew.waits if w.dimension == dimension}
    of = {id(rank): wait.get(label, 0) for rank, label in zip(case.ranks, case.job.labels, strict=False)}
    return lambda rank: of.get(id(rank), 0)


def ceiling_of_transfer(case: Case, dimension: str) -> Gain | None:
    """Upper bound: all exposed communication less waiting for late ranks; None if the capture has none."""
    if not seen(case, dimension):
        return None
    what = f"all exposed {dimension.upper()} communication except waiting for late ranks"
    return ceiling(case, transfer_ns(case, dimension), what)


def seen(case: Case, dimension: str) -> bool:
    """Whether a capture has communication known to be of a dimension."""
    return any(row.dimension == dimension for rank in case.ranks for row in rank.communication)


def exposed_evidence(case: Case, dimension: str, share: float) -> Evidence:
    """Exposed communication of a dimension; none seen in the capture is no measured zero."""
    label = f"exposed {dimension.upper()} communication, mean over ranks"
    return Evidence(
        label=label, value=per_cent(share) if seen(case, dimension) else "none known in the capture"
    )


def cannot_be(case: Case, collective: str, dimension: str) -> bool:
    """Whether a dimension makes no such collective, or its groups are known to be of one rank: gradients are
    reduced over the context-parallel ranks too, and experts may be cut in more parts than other layers."""
    facts = case.job.facts
    alone = {
        "dp": facts.dp == 1 and facts.cp == 1,
        "tp": facts.tp == 1 and facts.etp in (None, 1),
    }.get(dimension, getattr(facts, dimension, None) == 1)
    return alone or (collective in USES and dimension not in USES[collective])


def serves_none(case: Case, collective: str) -> bool:
    """Whether the layout that is known has no dimension that makes such a collective: an all-to-all of
    sharded embeddings, with ep=1 cp=1."""
    return collective in USES and all(cannot_be(case, collective, d) for d in USES[collective])


def _may_be(case: Case, dimension: str) -> Callable[[RankMeasurement], int]:
    """A rank's exposed communication of unknown dimension, without what cannot be of this one."""

    def of(rank: RankMeasurement) -> int:
        unknown = rank.ledger.exposed_comm.by_name["unknown"]
        rows = [row for row in rank.communication if row.dimension == "unknown"]
        may = [row.exposed_ns for row in rows if not cannot_be(case, row.collective, dimension)]
        return unknown if len(may) == len(rows) else min(sum(may), unknown)

    return of


def communication(dimension: str) -> Need:
    """Communication of a dimension, without so much of unknown dimension that it could decide the verdict."""
    name = dimension.upper()

    def missing(case: Case) -> Missing | None:
        share, there = case.share(exposed_ns(dimension)) or 0.0, seen(case, dimension)
        unknown = case.share(_may_be(case, dimension)) or 0.0
        if share < MIN_FRAC <= share + unknown:
            known = f"{per_cent(share)} is known to be" if there else "none is known to be"
            reason = (
                f"{per_cent(unknown)} of the time is exposed communication of unknown dimension, {known} "
            )
            return skipped(f"{reason}{name}: see PD100")
        return None if there else not_applicable(f"no {name} communication was seen")

    return Need(words=f"{name} communication of known dimension", missing=missing)


def judged(case: Case, dimension: str) -> tuple[Verdict | None, list[Evidence]]:
    """(the verdict if it passes, else None; the evidence). Needs WINDOW and `communication`."""
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    share = given(case.share(exposed_ns(dimension)))
    what = f"exposed {dimension.upper()} communication"
    evidence = time_evidence(case, what, share, exposed_ns(dimension))
    total = sum(row.total_ns for row in rows)
    if total:
        hidden = 1 - sum(row.exposed_ns for row in rows) / total
        evidence.append(Evidence(label="of this communication hidden", value=per_cent(hidden, 0)))
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence), evidence
    transfer = case.share(transfer_ns(case, dimension)) or 0.0
    if transfer < share:
        evidence.append(Evidence(label="waiting for late ranks", value=per_cent(share - transfer)))
    if transfer < MIN_FRAC:
        reason = "the exposed time is waiting for late ranks, see PD303"
        return Verdict(state="passes", reason=reason, evidence=evidence), evidence
    return None, evidence


QUEUES = "without_queueing_tp"
"""The replay in which no TP collective is queued behind a kernel launched after it."""
LITTLE_HIDDEN_FRAC = 0.10
"""With a smaller hidden share, communication counts as not overlapped."""


def time_ns(case: Case, dimension: str) -> int:
    """Communication of a dimension, rows of all ranks together; rows that overlap count twice."""
    return sum(
        row.total_ns for rank in case.ranks for row in rank.communication if row.dimension == dimension
    )


def hidden_frac(case: Case, dimension: str) -> float | None:
    """Hidden share of a dimension's communication; None without any."""
    total = time_ns(case, dimension)
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    return sum(row.hidden_ns for row in rows) / total if total else None


def level_of(case: Case, dimension: str, *, switched_off: bool) -> Level:
    """A problem if the overlap is known to be off, or hardly anything is hidden; else information: the
    exposed rest may be what no overlap reaches."""
    hidden = hidden_frac(case, dimension)
    return "problem" if switched_off or (hidden or 0.0) < LITTLE_HIDDEN_FRAC else "information"


def surely_saved(case: Case, key: str) -> Gain | None:
    """The predicted gain of a change, if even the lower end of its band is positive."""
    gain = predicted(case, key)
    return gain if gain is not None and gain.is_predicted and (gain.low_ms or 0.0) > 0 else None


def queues(case: Case) -> bool:
    """Whether the replay found TP collectives queued behind kernels launched after them."""
    return surely_saved(case, QUEUES) is not None
