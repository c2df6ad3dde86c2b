"""Which of the things to do the verdict is about: it comes first, so that verdict and advice agree.

Who is named by a rule (a rank, a stage, uneven data) leads, but where a change against the largest loss of
the ledger surely saves more; else a problem of kernels that is worth more than that loss; else what makes a
device idle and the others wait for it, where that surely saves more than what is done about the loss; else
what is done about it; else, where computing loses more than that, what makes computing shorter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from perfdoc.results.losses import PIPELINE, WORTH_A_VERDICT_FRAC, largest_loss
from perfdoc.results.ranking import Blamed, Opportunity
from perfdoc.results.replay import WITHOUT_STRAGGLER
from perfdoc.results.rules import NOTHING_TO_SET, RuleResult
from perfdoc.results.waits import waits_by_schedule
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.exposed import exposed_ns, transfer_ns
from perfdoc.simulator.replay.proposals import CHANGES

TIME_OF: Mapping[str, str] = MappingProxyType({key: c.time for key, c in CHANGES.items() if c.time})
"""The time that a simulated change takes away."""
PART_FRAC = 0.25
"""Of the largest loss: who saves less of it is no answer to it."""
_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        PIPELINE: (PIPELINE, "pipeline.bubble", "pipeline.transfer", "pipeline.late_peer"),
        "idle.host": ("idle.host", "idle.waits", "idle.pauses"),
    }
)
"""Times of rules and changes that are of one leaf."""


def with_blamed(
    case: Case,
    rows: Sequence[Opportunity],
    found: Mapping[str, RuleResult],
    times: Mapping[str, Sequence[str]],
) -> list[Opportunity]:
    """The rows, that first which the verdict is about, and marked; as they are where none is.

    rows: in their order. found: rules that fire. times: by code, what the rule's gain reduces.
    """
    at, why = _blamed(case, rows, found, times)
    return [replace(rows[at], blamed=why), *rows[:at], *rows[at + 1 :]] if why else list(rows)


def _blamed(
    case: Case,
    rows: Sequence[Opportunity],
    found: Mapping[str, RuleResult],
    times: Mapping[str, Sequence[str]],
) -> tuple[int, Blamed]:
    if any(r.window.runs_once or r.events.work_missing or r.host.graphs.whole_graphs for r in case.ranks):
        return 0, ""
    named = next((at for at, row in enumerate(rows) if row.codes and found[row.codes[0]].blames), None)
    loss, lost = largest_loss([rank.ledger for rank in case.ranks])
    if named is not None:
        more_than = (i for i, r in enumerate(rows) if _surely_more(r, rows[named]) and not _stuck(r, found))
        return next(((i, "loss") for i in more_than if _is_about(rows[i], loss, times)), (named, "cause"))
    sized = [
        at
        for at, row in enumerate(rows)
        if row.kind in ("predicted", "bound") and not _stuck(row, found) and (row.gain_frac or 0.0) > 0
    ]
    of_loss = [at for at in sized if _is_about(rows[at], loss, times)]
    sure = [at for at in of_loss if _is_sure(rows[at])]
    about = [at for at in of_loss if (rows[at].gain_frac or 0.0) >= PART_FRAC * lost]
    about = [*(sure if about and not rows[about[0]].exact else ()), *about]
    if about and _is_waiting(case, loss):
        late = (at for at in sized if "waits" in times.get("".join(rows[at].codes[:1]), ()))
        about = [*(at for at in late if (rows[at].gain_frac or 0) > (rows[about[0]].gain_frac or 0)), *about]
    told = about or [at for at, r in enumerate(rows) if r.kind == "unmeasured" and _is_about(r, loss, times)]
    if about and loss.startswith("exposed_comm") and len(case.ranks) > 1:
        by = {at: found.get("".join(rows[at].codes[:1])) for at in sized}
        of_first = by[about[0]]
        hint = of_first is not None and of_first.level != "problem"
        for at in (at for at, rule in by.items() if rule is not None and rule.ends.startswith("idle.")):
            # Beside a hint, which is worth a try, half of the loss is more where it is sure.
            half = hint and at < about[0] and _is_sure(rows[at]) and (rows[at].gain_frac or 0.0) >= lost / 2
            if half or _surely_more(rows[at], rows[about[0]]):
                return at, "compute"
    best = next((at for at in sized if rows[at].exact and not _is_of_others(rows[at], times)), None)
    more = best is not None and (rows[best].worth_frac or 0.0) > lost
    rule = found.get("".join(rows[best].codes[:1])) if best is not None and more else None
    of_kernels = rule is not None and rule.level == "problem" and rule.code.startswith("PD4")
    if lost >= WORTH_A_VERDICT_FRAC and told and not of_kernels:
        return told[0], "loss"
    if best is not None and more:
        return best, "compute"
    # Of all ranks, where nothing is left to capture, what is first anyway is next, though it saves little.
    of_all = lost >= WORTH_A_VERDICT_FRAC and case.job.world_size == len(case.ranks)
    first = of_all and sized[:1] == sure[:1] and not _is_waiting(case, loss)
    return next(((at, "loss") for at in (*about, *(sure if first else ()))), (0, ""))


def _surely_more(row: Opportunity, than: Opportunity) -> bool:
    """Whether its whole band lies above the other's, with no condition open and no change of numerics."""
    if row.gain is None or than.gain is None:
        return False
    return _is_sure(row) and (row.gain.low_ms or 0.0) > (than.gain.high_ms or math.inf)


def _is_sure(row: Opportunity) -> bool:
    return row.kind == "predicted" and row.exact and not row.conditions


def _is_waiting(case: Case, loss: str) -> bool:
    """Whether at least half of this exposed communication is for late ranks, which no overlap shortens."""
    kind, _, dimension = loss.rpartition(".")
    if kind != "exposed_comm" or waits_by_schedule(dimension, case.job.stages or None):  # 0: maybe
        return False
    exposed = case.share(exposed_ns(dimension)) or 0.0
    return exposed > 0 and (case.share(transfer_ns(case, dimension)) or 0.0) * 2 <= exposed


def _is_of_others(row: Opportunity, times: Mapping[str, Sequence[str]]) -> bool:
    """Whether it makes no computing shorter: a rank that nobody is sure of, or communication."""
    own = [TIME_OF.get(row.key, ""), *(times.get(row.codes[0], ()) if row.codes else ())]
    return row.key.startswith(WITHOUT_STRAGGLER) or any(time.startswith("exposed_comm") for time in own)


def _is_about(row: Opportunity, loss: str, times: Mapping[str, Sequence[str]]) -> bool:
    own = set(times.get(row.codes[0], ())) if row.codes else set()
    return bool((own | {TIME_OF.get(row.key, "")}) & set(_PARTS.get(loss, (loss,))))


def _stuck(row: Opportunity, found: Mapping[str, RuleResult]) -> bool:
    rule = found[row.codes[0]] if row.codes else None
    return (
        rule is not None
        and rule.remedy == NOTHING_TO_SET
        and rule.gain is not None
        and rule.gain.key == row.key
    )
