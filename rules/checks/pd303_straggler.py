"""A collective starts to transfer when its last rank joins: one slow rank slows all ranks."""

from collections.abc import Iterator, Sequence
from functools import partial

from perfdoc.analyzers.skew.stragglers import FEWEST
from perfdoc.results.figures import brief, per_cent, significant
from perfdoc.results.names import opening
from perfdoc.results.ranking import TRIFLE_FRAC
from perfdoc.results.replay import WITHOUT_STRAGGLER, Prediction
from perfdoc.results.waits import LATE_WORDS, Straggler, may_be_data, waits_by_schedule
from perfdoc.results.what_if import CauseKind, WhatIfCause
from perfdoc.rules.engine.gain import Gain
from perfdoc.rules.engine.needs import Missing, Need, over_ranks, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import late_rank
from perfdoc.rules.facts.capture import if_as_slow
from perfdoc.rules.facts.culprit import ALL_CURED, AS_MUCH, cause_of, gain_of, is_as_much, leading
from perfdoc.rules.facts.culprit_words import LOOK_AT_HOST, cure, does, is_one, look_at_device, waits_for, who
from perfdoc.rules.facts.degrees import PP
from perfdoc.rules.facts.expert_balance import balance, capacity_words
from perfdoc.rules.facts.late_work import (
    as_spread,
    check_of,
    computing_part,
    late_words,
    longer_times,
    work_words,
)
from perfdoc.rules.facts.loading import awaited_call, held_in, paused_in
from perfdoc.rules.facts.pauses import Pausing, in_pauses, most_waited
from perfdoc.simulator.replay.proposals import change_title


def _cause(case: Case) -> WhatIfCause | None:
    """The first of its kinds; waiting for ranks that were not captured where nothing better is known."""
    cause = cause_of(case.what_if, *_KINDS) or cause_of(case.what_if, "not_captured")
    waits = cause is not None and cause.kind == "not_captured" and cause not in leading(case.what_if)
    return None if waits else cause


def _not_matched(case: Case) -> Missing | None:
    return None if _cause(case) is not None else _MATCHED.missing(case)


def _not_distinguishable(case: Case) -> Missing | None:
    if _cause(case) is not None:
        return None
    found = case.job.skew
    if not found.stragglers and in_pauses(case) is not None:
        return None
    few = not found.stragglers and found.distinguishable < FEWEST
    if few or found.stragglers_state in ("not_distinguishable", "not_compared"):
        return skipped(found.stragglers_reason)
    return None


_ABSENT = ("late_stage", "not_captured")
_KINDS: tuple[CauseKind, ...] = ("slow_rank", "late_host", "slow_link", "late_stage", "uneven_experts")
_MATCHED = over_ranks("collectives matched over several ranks", lambda case: case.job.skew)

META = Meta(
    title="Straggler",
    action="Find why the straggler is late",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="scale",
    time=("waits",),
    needs=(
        Need(words=_MATCHED.words, missing=_not_matched),
        Need(words="skew above the clock error", missing=_not_distinguishable),
    ),
    advice=("host_symptom_variation",),
    for_servers=True,
)

MIN_FRAC = TRIFLE_FRAC
"""Of the time: cost of its lateness, by replay if possible."""
PROBLEM_FRAC = 0.01
"""From here on it is a problem if chance is out of the question: two equal runs about it differ as problem
and information, not as problem and nothing."""
SURE = 0.001
"""Probability of its lateness by chance, by the exact test; a tenth of what fires."""
LARGE_FRAC = 2 * PROBLEM_FRAC
"""From here on it is a problem whenever it fires."""
_NAMELESS = {
    "unknown": "collectives of unknown dimension",
    "other": "collectives of a group over several dimensions",
}


_told = partial(
    fires,
    verify="Run again with the rank elsewhere: if its machine is the cause, another becomes the straggler.",
    false_alarm="A rank with more work by design: more tokens, or hot experts.",
)
_told_of_experts = partial(
    fires,
    verify="Capture again some hundred steps later: the busiest over the mean falls.",
    false_alarm="The first steps of a training, in which no router is balanced yet.",
    otherwise="Balance the router by its framework's means (torchtitan `load_balance_coeff`).",
)


def evaluate(case: Case) -> Verdict:
    """Fires if a rank joins last more often than by chance, at a cost of `MIN_FRAC`; not if that is the
    order in which pipeline stages end, nor if the rank itself only waited for others. As information if it
    computes no longer than the others, or no longer than uneven data may make it, if one stretch of the
    capture alone shows it, or if it costs less than `PROBLEM_FRAC` (`LARGE_FRAC` if chance is not out of the
    question): a repeat may show another, or none."""
    cause = _cause(case)
    if cause is not None and not _is_known_better(case, cause):
        return _by_what_if(case, cause)
    found = case.job.skew
    if not found.stragglers and (pausing := in_pauses(case)) is not None:
        return _by_pauses(case, pausing)
    late = [s for s in found.stragglers if _loss_frac(case, s) >= MIN_FRAC]
    culprits = [s for s in late if s.cause != "waiting" and not _by_schedule(case, s)]
    if not culprits:
        count = f"{found.distinguishable:,} of {found.compared:,}"
        seen = ("collectives with skew above the clock error, of those compared", count)
        return passes([seen], _excused(case, late[0]) if late else "")
    worst = max(culprits, key=lambda s: (_would_repeat(case, s), s.cause == "compute", _loss_frac(case, s)))
    prediction = _prediction(case, worst)
    named = _named(case, worst, culprits)
    last_in = f"{per_cent(worst.recurrence_frac, 0)} of {worst.collectives:,} {_collectives(worst.dimension)}"
    computing = "" if may_be_data(worst) else computing_part(work_words(case, worst.name))
    part = {"compute": computing, "host": "host process"}.get(worst.cause, "")
    gain = most_waited(case, {s.name for s in named}) if prediction is None else prediction.gain
    gain = as_spread(case, worst.name, work_words(case, worst.name) if computing else "", gain)
    remedy = " ".join(_where_to_look(case, named))
    return _told(
        action=check_of(part, worst.name) if part else f"Find why {worst.name} is late",
        blames=_blames(case, named) if _is_blamed(case, worst, gain) else "",
        worst=late_rank(case, worst),
        level="problem" if _would_repeat(case, worst) else "information",
        reason=f"{worst.name} arrives last in {last_in} ({per_cent(worst.chance_frac, 0)} would be chance)"
        + ("; in these steps uneven data may do as much" if may_be_data(worst) else "")
        + ("" if worst.borne_out else "; so in one stretch of the capture"),
        evidence=[
            ("arrives last in", last_in),
            ("expected by chance", per_cent(worst.chance_frac, 0)),
            ("other ranks' wait for it, overlapping collectives summed", brief(worst.delay_ns)),
        ],
        remedy=remedy,
        gain=if_as_slow(case, gain) if LOOK_AT_HOST in remedy else gain,
    )


def _by_pauses(case: Case, late: Pausing) -> Verdict:
    found, gain, where = case.job.skew, most_waited(case, late.names, on_hosts=False), paused_in(case)
    longest, s = brief(max(s.start_spread_ns for s in found.largest_spreads)), "s" if late.is_one else ""
    return _told(
        action=f"Find why {late.who} pause{s}",
        blames=f"The others wait for {late.who}, {late.does}{late.at}" if is_as_much(case, gain) else "",
        reason=f"{late.who} come{s} up to {longest} late{late.at}",
        evidence=[("of all waiting, for that", per_cent(late.wait_frac, 0)), ("the longest", longest)],
        remedy=(f"See what is done in {where}. " if where else "") + late.cure,
        gain=gain,
    )


def _is_known_better(case: Case, cause: WhatIfCause) -> bool:
    """Whether the replay of every kernel predicts as much for a straggler."""
    sure = [s for s in case.job.skew.stragglers if not may_be_data(s)]
    found = [p for s in sure if (p := _prediction(case, s)) is not None]
    same = cause.kind != "uneven_experts"  # which that takes for the rank's own
    return same and any((p.mid_ns or 0) >= AS_MUCH * cause.saved_ns for p in found)


def _by_what_if(case: Case, cause: WhatIfCause) -> Verdict:
    """Of a rank that takes longer than its peers for the same passes, or a link for as many bytes."""
    gain, step = gain_of(case, cause), f"{brief(cause.step_ns)}, not {brief(case.what_if.step_ns or 0)}"
    evidence = [
        ("as long as its peers", f"{significant(cause.ratio)} times"),
        ("steps in which it is", per_cent(cause.recurrence_frac, 0)),
        ("the step without it", step),
    ]
    how = _cure(case, cause)
    gain = (cause.kind == "slow_rank" and as_spread(case, who(cause), how, gain)) or gain
    part = {"slow_rank": computing_part(how), "late_host": "host process", "slow_link": "link"}.get(
        cause.kind
    )
    note = opening(cause.note)
    several = "es" if cause.kind == "late_host" else "s"
    check = check_of(f"{part}{'' if is_one(cause) else several}", who(cause)) if part else ""
    verdict, advice = (partial(_told, verify=ALL_CURED) if cause.is_in_turn else _told), []
    if cause.kind == "uneven_experts":
        how += capacity_words(case)
        check, evidence[0] = "Balance the load of experts", ("the busiest over the mean", evidence[0][1])
        verdict, advice = _told_of_experts, balance(case, gain)
    return verdict(
        action="Capture the ranks that are waited for" if cause.kind in _ABSENT else check,
        reason=does(cause, case.what_if),
        evidence=[("the step without waiting for it", step)] if cause.kind == "not_captured" else evidence,
        remedy=f"{how}." + (f" {note}." if note else ""),
        advice=advice,
        gain=if_as_slow(case, gain) if LOOK_AT_HOST in how else gain,
        blames=waits_for(case, cause) if _leads(case, cause, gain) else "",
        cause=cause,
    )


def _look_at_host(case: Case, names: Sequence[str]) -> str:
    """What to check of these hosts: the range that one pauses in, else the call that they mostly wait in, as
    far as the captures show it, and its process."""
    if len(names) == 1 and (where := held_in(case, names[0])):
        return f"See what {where} does: its host pauses there"
    late = [rank for rank, label in zip(case.ranks, case.job.labels, strict=True) if label in names]
    call = awaited_call(case, late) if late else ""
    return (f"See why {'it' if len(late) == 1 else 'each'} waits in {call}. " if call else "") + LOOK_AT_HOST


def _cure(case: Case, cause: WhatIfCause) -> str:
    """Of one rank that computes longer by what its kernels show, where peers run the same."""
    if cause.kind == "late_host":
        return _look_at_host(case, [*cause.captures, *(f"rank {number}" for number in cause.ranks)])
    if cause.kind != "slow_rank":
        return cure(cause)
    shown = is_one(cause) and who(cause) in case.job.labels
    return (shown and work_words(case, who(cause))) or look_at_device(case)


def _leads(case: Case, cause: WhatIfCause, gain: Gain) -> bool:
    """Late hosts lead only where the bar shows waiting, or they cost about as much as anything else: where
    every rank waits for its own host most of the step, one that does so a little longer is not what it shows.
    Launch delays, with many of which no other cause leads, are theirs."""
    first = leading(case.what_if)
    if cause not in first and (first or cause.kind != "late_host"):
        return False
    return cause.kind != "late_host" or is_as_much(case, gain, leads=True)


def _named(case: Case, worst: Straggler, culprits: Sequence[Straggler]) -> list[Straggler]:
    """The worst, and each other one that a tenth of all waiting is for, once: where it costs most."""
    found = case.job.skew
    much = {late.name for late in (found.latest, *found.also_late) if late is not None} - {worst.name}
    others = [
        max((s for s in culprits if s.name == name), key=lambda s: _loss_frac(case, s))
        for name in dict.fromkeys(s.name for s in culprits if s.name in much)
    ]
    return [worst, *sorted(others, key=lambda s: -_loss_frac(case, s))[:_MOST_OTHERS]]


_MOST_OTHERS = 3
_SEVERAL = {"compute": "compute longer than the others", "host": "are launched late by their host processes"}
_CHECK = {
    "before": "Capture all ranks from one step on",
    "data": "Compare its storage, its loader's workers, its share of the data, and what it logs or saves",
    "gc": "Collect garbage on all ranks in the same step",
}


def _where_to_look(case: Case, named: Sequence[Straggler]) -> Iterator[str]:
    """What they do, and what to compare; those of one cause together."""
    for cause in dict.fromkeys(s.cause for s in named):
        names = [s.name for s in named if s.cause == cause]
        does = LATE_WORDS[cause]
        if cause == "other":
            does = "computes no longer than the others and does not wait for them"
        each = "it" if len(names) == 1 else "each"
        check = _CHECK.get(cause) or _look_at_host(case, names)
        if any(may_be_data(s) for s in named if s.cause == cause):
            check = "Capture more steps: in these uneven data may do as much"
        elif cause == "compute":
            check = (len(names) == 1 and work_words(case, names[0])) or look_at_device(case)
        yield f"{check}." if len(named) == 1 else f"{' and '.join(names)}: {each} {does}. {check}."


def _would_repeat(case: Case, straggler: Straggler) -> bool:
    """Whether a second run of the same ranks can be expected to show it."""
    lasting = straggler.cause == "compute" and bool(straggler.borne_out) and not may_be_data(straggler)
    least = PROBLEM_FRAC if straggler.chance_probability < SURE else LARGE_FRAC
    return lasting and _loss_frac(case, straggler) >= least


def _is_blamed(case: Case, straggler: Straggler, gain: Gain | None) -> bool:
    """Whether the verdict names it: most of the waiting is for it and it costs about as much as anything else
    does, or it is known to compute longer than the others, and the bar shows most of all that they wait."""
    latest, first = case.job.skew.latest, next(iter(leading(case.what_if)), None)
    named = latest is not None and latest.name == straggler.name and latest.cause not in ("waiting", "before")
    sure = _prediction(case, straggler) is not None and _would_repeat(case, straggler)
    of_it = first is not None and (straggler.rank in first.ranks or straggler.name in first.captures)
    another = first is not None and (first.kind not in _KINDS or not of_it)
    if not (named or sure) or another or any(rank.window.runs_once for rank in case.ranks):
        return False
    if may_be_data(straggler):
        return False
    ratio = longer_times(case, straggler.name) if straggler.cause == "compute" else None
    if ratio is not None and ratio < LEAST_TIMES:
        return False
    return is_as_much(case, gain, leads=sure and ratio is not None)


LEAST_TIMES = 1.03
"""As long as its peers': a rank whose kernels run less than that longer, over all steps, is no slow GPU,
however often it was last."""


def _blames(case: Case, named: Sequence[Straggler]) -> str:
    """`Rank 1 computes 1.15 times as long as its DP peers`; of several what the first one does."""
    first, *others = named
    names = " and ".join(s.name for s in named)
    said = (_SEVERAL.get(first.cause) if others else None) or late_words(case, first)
    ratio = longer_times(case, first.name) if first.cause == "compute" and not others else None
    if ratio is not None:
        said = f"computes {significant(ratio)} times as long as its peers"
    return f"{opening(names)} {said}"


def _collectives(dimension: str) -> str:
    """`dp` → "DP collectives"."""
    return _NAMELESS.get(dimension) or f"{dimension.upper()} collectives"


def _by_schedule(case: Case, straggler: Straggler) -> bool:
    """Whether the group may span pipeline stages: by the schedule the first one ends last in every step.
    Where stages are not known, who computes longer by as much is late for that."""
    longer_ns = straggler.extra_compute_ns or 0
    if case.job.may_be_piped and straggler.cause == "compute" and 2 * longer_ns >= straggler.delay_ns:
        return False
    return waits_by_schedule(straggler.dimension, case.degree(PP) or case.job.stages)


def _excused(case: Case, straggler: Straggler) -> str:
    who = f"{straggler.name} joins last in {_collectives(straggler.dimension)}"
    if _by_schedule(case, straggler):
        may = "may " if case.job.may_be_piped else ""
        return f"{who}, which {may}span pipeline stages: by the schedule these end one after another"
    return f"{who} because it waited for other ranks itself"


def _prediction(case: Case, straggler: Straggler) -> Prediction | None:
    """The prediction with this rank computing as fast as its group; each dimension is replayed for one rank
    only. None where it is late for another cause, which that does not take away."""
    if straggler.cause != "compute":
        return None
    key = WITHOUT_STRAGGLER + straggler.dimension
    found = case.prediction(key)
    ours = found is not None and found.change == change_title(key, straggler.name)
    return found if ours and found is not None and found.mid_ns is not None else None


def _loss_frac(case: Case, straggler: Straggler) -> float:
    """The cost by replay; else the sum of its delays, which counts overlapping ones twice, or how much longer
    the others wait than it, where it is not alone late."""
    found = _prediction(case, straggler)
    if found is not None and found.mid_ns is not None and found.step_ns:
        return found.mid_ns / found.step_ns
    span = max((r.span_ns[1] - r.span_ns[0] for r in case.ranks), default=0)
    return min(1.0, max(straggler.delay_ns, straggler.lateness_ns) / span) if span else 0.0
