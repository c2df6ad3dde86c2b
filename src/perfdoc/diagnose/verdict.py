"""The verdict: one sentence with what makes the step long and its price, and what shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from perfdoc.diagnose import account, once
from perfdoc.records import dataclass
from perfdoc.results import Opportunity, Rank, RuleResult
from perfdoc.results.figures import brief, plural, share, significant
from perfdoc.results.losses import PIPELINE, WORTH_A_VERDICT_FRAC, largest_loss, outside_of
from perfdoc.results.names import opening, sentences, shorten
from perfdoc.results.ranks import computing_longer, in_steps, shown_step_ns, units_of
from perfdoc.results.step_times import StepTimes
from perfdoc.results.tables import CollectiveSize
from perfdoc.rules.facts.capture import SLOWED
from perfdoc.rules.facts.exposed import message_sizes, server_link

_WAITS: Mapping[str, str] = MappingProxyType(
    {
        "idle.host": "{gpus} for the host to launch kernels (launch-bound)",
        "waits": "{gpus} for the host, which waits for {them} first (blocking copies, synchronize)",
        "idle.gc": "{gpus} while the host collects garbage",
        "idle.data": "{gpus} for the next batch (data-loader stall)",
        "idle.dependency": "{gpus} for another stream",
        "idle.launch_latency": "{gpus} for queued kernels to start (launch latency)",
        "idle.unexplained": "{idle}, and nothing in the capture says why",
        "exposed_memcpy": "{gpus} for copies, with no kernel beside them",
        PIPELINE: "stages of the pipeline wait for one another",
        "exposed_comm.other": "communication of embedding or norm groups runs beside no compute",
        "exposed_comm.unknown": "communication of unknown dimension runs beside no compute",
    }
)
"""What is lost in a leaf. {gpus}: `the GPU waits`; {idle}: `the GPU is idle`."""
_LONGER = 1.15
"""Profiled steps over the others: from here on that is said."""
_RESTATED = (
    "that they",
    "mean over ranks",
    "per step",
    "in the window",
    "the capture itself slows",
    "worst rank, of",
    "arrives last",
    "expected by chance",
    "shorter than their launch",
    "most idle before",
    "overlapping collectives summed",
)
_FACTS, _FACTS_LONG = 3, 150
"""Of a rule's evidence, behind its reason; characters of them."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the verdict needs beside ranks, rules and rows."""

    who_waits: str
    """For whom communication waits; empty where it does not."""
    blamed: str
    """What the step would take without the cause that a rule names."""
    late_host: bool = False
    """Whether that is a host that launches late."""
    slowed_by: Sequence[str]
    """What of the captures slows their hosts."""
    awaits: str
    pauses: str = ""
    """How often the host pauses, and where."""
    bubble_ns: int
    """Of exposed PP, all ranks together."""
    transfer_frac: float | None
    """Of the window: messages between stages once both sides have come; None unknown."""
    failed_allocations: int
    hang: tuple[str, str] = "", ""
    """A step that does not end, and who launched least of it."""
    taken: str = ""
    """What is lost to others that have the GPU too."""
    aside: tuple[str, str] = "", ""
    """That kernels wait for pages of managed memory; what few steps have more, which nothing else says."""
    step_times: StepTimes
    ranks_of_job: int | None
    """None unknown."""
    collectives: Sequence[CollectiveSize] = ()
    """With the number of ranks of their groups."""
    in_turns: bool = False
    """Whether devices of one process work one at a time."""
    shared_gpu: bool = False
    """Whether other processes use the GPU that idles longest with nothing that says why."""
    unnamed: bool = False
    """Whether names of nearly all kernels are missing."""
    doubts: str
    """What is hidden or of unknown class; empty where nothing much is."""
    mostly: str = ""
    """What computes most, with the comma before it."""


def verdict_of(
    ranks: Sequence[Rank], rows: Sequence[Opportunity], rules: Sequence[RuleResult], seen: Evidence
) -> tuple[str, str]:
    """(the verdict, what shows it), each in whole sentences; of at least one rank.

    rows: in the order of the diagnosis. rules: of every state.
    """
    said, why = _of_time(ranks, rows, {rule.code: rule for rule in rules}, seen)
    outside = outside_of(ranks)
    beside = once.beside_steps(outside, _gpus(ranks))[0] if outside is not None else ""
    if beside and beside != said:
        why = f"{why.strip()} {beside}"
    if seen.taken:
        said, *rest = sentences(seen.taken)
        why = " ".join([*rest, why])
    if seen.failed_allocations:
        why = f"{said} {why}"
        said = f"{plural(seen.failed_allocations, 'allocation')} failed: out of GPU memory."
    if seen.hang[0]:
        said, why = seen.hang[0], f"{seen.hang[1]} Before it: {said}"
    return said, " ".join(part for part in (why.strip(), seen.doubts) if part)


def _of_time(
    ranks: Sequence[Rank], rows: Sequence[Opportunity], rules: Mapping[str, RuleResult], seen: Evidence
) -> tuple[str, str]:
    whole_ns = sum(rank.ledger_ns.total for rank in ranks)
    unknown = next((rank.events.work_missing for rank in ranks if rank.events.work_missing), "")
    if not whole_ns:
        return "The window is empty: nothing ran in it.", ""
    if unknown:
        return f"{opening(unknown)}: where the time went is not known.", ""
    if (only := once.verdict_once(ranks)) is not None:
        return only
    loss, frac = largest_loss([rank.ledger_ns for rank in ranks])
    first = rows[0] if rows and rows[0].blamed else None
    wrong = _first_problem(rows, rules)
    gain = rows[0].gain if first is not None or wrong else None
    worth_ms = (gain.mid_ms or gain.high_ms or 0.0) if gain is not None else 0.0
    if (outside := outside_of(ranks)) is not None and outside.outside_ns >= worth_ms * 1e6:
        return once.beside_steps(outside, _gpus(ranks))
    part = brief(frac * whole_ns / sum(units_of(ranks)))
    if account.graphs_frac(ranks) > _MOSTLY:
        part_of = f"{share(account.graphs_frac(ranks))} of kernel time is in CUDA graphs"
        hidden = f"{part_of} traced as a whole: what is lost inside them is hidden."
        counts = "Communication and idle time inside them count as compute."
        if frac < WORTH_A_VERDICT_FRAC:
            return hidden, counts
        lost = f"{part} of the {_base(ranks)}, {share(frac)}: {_what(loss, frac, ranks, seen)}."
        return lost, f"{hidden} {counts}"
    rule = rules.get(first.codes[0]) if first is not None and first.codes else None
    why = " ".join([*_why(rule, first), *_profiler(ranks, seen)])
    computes = share(sum(rank.ledger_ns.compute for rank in ranks) / whole_ns)
    if first is not None and rule is not None and first.blamed == "cause":
        found, *more = sentences(seen.blamed or why)
        slowed = _profiler(ranks, seen) if seen.late_host else ()
        return f"{rule.blames}: {_price(first)}.", " ".join([found, *slowed, *more])
    if first is not None and first.blamed == "compute":
        if rule is not None and rule.ends.startswith("idle."):
            what = f"{rule.reason} (with {rule.with_it})"
            return f"{_price(first)}, {share(first.gain_frac or 0.0)}: {what}.", why
        what = rule.reason if rule is not None else "a simulated change makes it shorter"
        return f"{computes} of the {_base(ranks)} is compute; {what}: {_saved(first)}.", why
    if not loss:
        return f"All of the {_base(ranks)} is compute{wrong or seen.mostly}.", why
    what = _what(loss, frac, ranks, seen)
    if loss == "idle.host" and first is not None and "PD208" in first.codes:
        what = _WAITS["waits"].format(gpus=_gpus(ranks), them="it" if len(ranks) == 1 else "them")
    what += _profiled(seen.step_times)[0] if loss.startswith("idle.") else ""
    lost = f"{part} of the {_base(ranks)}, {share(frac)}: {what}."
    if frac < WORTH_A_VERDICT_FRAC:
        sound = ", or waits for pages in kernels" if seen.aside[0] else f"{seen.mostly}: no large loss"
        sound = ", or communication: names of kernels are missing" if seen.unnamed else sound
        said = f"{computes} of the {_base(ranks)} is compute{wrong or sound}."
        first_of = "Else the largest loss" if wrong else "The largest"
        return said, " ".join(filter(None, (*seen.aside, f"{first_of} is {lost} {why}")))
    if loss.startswith("exposed_comm"):
        longest = _longest(ranks) if loss in (PIPELINE, "exposed_comm.unknown") else ""
        shown = list(_collectives(loss.rpartition(".")[2], ranks, seen))
        if loss == PIPELINE and rule is not None and rule.ends == "pipeline.bubble":
            shown = [f"{opening(rule.reason)}."]  # by the schedule, whatever the messages are
        told = [seen.who_waits or seen.blamed or longest, *shown]
        why = " ".join(text for text in (*told, *_profiler(ranks, seen)) if text) or why
    return lost, why


def _first_problem(rows: Sequence[Opportunity], rules: Mapping[str, RuleResult]) -> str:
    """What is mended first where no loss is large: a problem of the numbers that it computes with (GEMMs in
    FP32), or one whose cure is predicted; empty of what may as well stay (16 bits in place of FP8)."""
    cured = bool(rows) and rows[0].kind == "predicted" and not rows[0].blamed
    row = rows[0] if rows and (cured or not rows[0].exact) else None
    rule = rules.get(row.codes[0]) if row is not None and row.codes else None
    if row is None or rule is None or rule.level != "problem":
        return ""
    return f"; {rule.reason}" + (f": {_saved(row)}" if row.gain is not None else "")


def _longest(ranks: Sequence[Rank], *, in_short: bool = False) -> str:
    """Which few ranks compute longer than the median rank, for which the others may wait."""
    usual, longer = computing_longer(ranks)
    if not longer:
        return ""
    mean, other = sum(longer.values()) / len(longer), "other" if len(ranks) == 2 else "median rank"
    who = " and ".join(shorten(label, 48) for label in longer) + f" compute{'s' * (len(longer) == 1)}"
    if in_short:
        return f"; {who} {significant(mean / usual)} times as long as the {other}"
    return f"{opening(who)} {brief(mean)} a {_unit(ranks)}, the {other} {brief(usual)}."


def _collectives(dimension: str, ranks: Sequence[Rank], seen: Evidence) -> Iterator[str]:
    """The collective that is exposed most, and whether waiting can be told from transfer."""
    rows = [row for rank in ranks for row in rank.communication if row.dimension == dimension]
    if not rows:
        return
    kinds = {row.collective for row in rows}
    most = max(sorted(kinds), key=lambda kind: sum(row.exposed_ns for row in rows if row.collective == kind))
    of = [row for row in rows if row.collective == most]
    some = seen.ranks_of_job is not None and seen.ranks_of_job > len(ranks)
    often = sum(row.count for row in of) / sum(units_of(ranks))
    what = most.replace("_", "-") or "unnamed communication"
    said = [f"Mostly {what}: {significant(often)} a {_unit(ranks)}"]
    said += [each] if (each := message_sizes(of, sum(units_of(ranks)))) else []
    hidden, own = sum(row.hidden_ns for row in of), sum(row.total_ns for row in of)
    said += [f"{share(hidden / own)} under compute"] if own else []
    rates = [(row.bus_bandwidth_gbps, row.total_ns) for row in of if row.bus_bandwidth_gbps is not None]
    if rates and (total := sum(ns for _, ns in rates)):
        reached = sum(rate * ns for rate, ns in rates) / total
        groups = {r.ranks for r in seen.collectives if (r.dimension, r.collective) == (dimension, most)}
        hosts = {rank.gpu.host for rank in ranks}
        known = len(groups) == 1 and 0 < (seen.ranks_of_job or 0) <= 8 and len(hosts - {None}) <= 1
        one_server = None not in hosts and len(ranks) == seen.ranks_of_job
        link = server_link(ranks[0].gpu.name, groups.pop() or 0) if known else None
        if link and reached > link[1]:  # summed in the switch (NVLS)
            link = None
        whose = link[0] if link and one_server else "a server"
        part = f", {share(reached / link[1])} of {whose}'s {link[1]:g} GB/s" if link else ""
        large = sum(row.bytes or 0 for row in of) >= _LARGE_BYTES * sum(row.count for row in of)
        slow = link is not None and some and large and reached < _A_TRANSFER * link[1]
        likely = "is likely" if one_server else "may be"
        waiting = f"so most {likely} waiting" if slow else "waiting included"
        said.append(f"{significant(reached)} GB/s (bus){part}, {waiting}")
    yield f"{', '.join(said)}."
    if some and not seen.who_waits:
        shown = f"{len(ranks):,} of {seen.ranks_of_job:,} ranks captured"
        yield f"{shown}: waiting for others is not told from transfer."


_A_TRANSFER, _LARGE_BYTES = 0.03, 1 << 20
"""Of a link: messages from this size on that reach less wait for most of the time."""
_MOSTLY = 0.5
"""Of kernel time, inside graphs; of what stages lose, transfer."""


def _unit(ranks: Sequence[Rank]) -> str:
    return "step" if in_steps(ranks) else "window"


def _base(ranks: Sequence[Rank]) -> str:
    """`220 ms step`, the mean over ranks."""
    mean_ns = sum(rank.ledger_ns.total for rank in ranks) / sum(units_of(ranks))
    return f"{brief(shown_step_ns(mean_ns, ranks))} {_unit(ranks)}"


def _price(row: Opportunity) -> str:
    """`9.54 ms of the 97.2 ms step`, on the base of all shares of the list, where it has one."""
    if row.gain is None or not row.gain.size_ms or not row.gain_frac:
        return _saved(row)
    return f"{_saved(row)} of the {brief(row.gain.size_ms * 1e6 / row.gain_frac)} {row.gain_per}"


def _saved(row: Opportunity) -> str:
    """`9.54 ms`; of an upper bound `up to`, and of one that is more than the base of shares `a step`."""
    if row.gain is None or not row.gain.size_ms:
        return "its price is not known"
    most = "" if row.gain.is_predicted else "up to "
    return f"{most}{brief(row.gain.size_ms * 1e6)}" + ("" if row.gain_frac else f" a {row.gain_per}")


def _what(loss: str, frac: float, ranks: Sequence[Rank], seen: Evidence) -> str:
    if loss == "idle.host":
        on_host = all(rank.gpu.name == "CPU" for rank in ranks)
        cause = account.host_cause(ranks, on_host=on_host, awaits=seen.awaits)
        if cause != account.LAUNCH_BOUND:
            where = seen.pauses if cause in (account.PAUSES, account.WAITS) else ""
            return "Python runs between operators" if on_host else f"{_gpus(ranks)}: {cause}{where}"
    if loss == "idle.data" and account.data_is_likely(ranks):
        return f"{_gpus(ranks)}, likely for the next batch (data-loader stall)"
    if loss == PIPELINE:
        said = _WAITS[loss]
        if seen.transfer_frac is not None and seen.transfer_frac > _MOSTLY * frac:
            said = f"messages between stages run beside no compute, {share(seen.transfer_frac)} in transfer"
        bubble = share(seen.bubble_ns / sum(rank.ledger_ns.total for rank in ranks))
        by_schedule = f"{said}, {bubble} by the schedule (bubble)"
        return by_schedule if seen.bubble_ns else said + _longest(ranks, in_short=True)
    if loss.startswith("exposed_comm") and not _computes(ranks):
        named = "communication" if loss in _WAITS else f"{loss.rpartition('.')[2].upper()} communication"
        return f"{named}, and hardly anything computes that could run beside it"
    if loss not in _WAITS:
        return f"{loss.rpartition('.')[2].upper()} communication runs beside no compute"
    idle = "the GPU is idle" if len(ranks) == 1 else "the GPUs are idle"
    if loss == "idle.unexplained" and seen.shared_gpu:
        return "the GPU is shared: another process's work runs, or it is idle and nothing says why"
    if loss in ("idle.unexplained", "idle.host") and seen.in_turns:
        return f"{idle}: {len(ranks)} of one process seem to take turns, one at a time"
    return _WAITS[loss].format(gpus=_gpus(ranks), idle=idle)


def _computes(ranks: Sequence[Rank]) -> bool:
    return sum(r.ledger_ns.compute - WORTH_A_VERDICT_FRAC * r.ledger_ns.total for r in ranks) >= 0


def _gpus(ranks: Sequence[Rank]) -> str:
    what = "rank" if all(rank.gpu.name == "CPU" for rank in ranks) else "GPU"
    return f"the {what} waits" if len(ranks) == 1 else f"the {what}s wait"


def _why(rule: RuleResult | None, row: Opportunity | None) -> Iterator[str]:
    """A rule's reason and what it rests on, but for what the verdict has said."""
    if rule is None or row is None:
        return
    facts: list[str] = []
    for fact in rule.evidence:
        said = f"{fact.label}{'' if fact.label.endswith((' runs', ' every')) else ':'} {fact.value}"
        restated = fact.label.startswith(("of it", "such ")) or any(
            words in fact.label for words in _RESTATED
        )
        if not restated and len(facts) < _FACTS and len("; ".join([*facts, said])) <= _FACTS_LONG:
            facts.append(said)
    # Of compute the verdict has the reason itself.
    reason = "" if row.blamed == "compute" or rule.reason.lower() == rule.blames.lower() else rule.reason
    reason = reason.removesuffix(SLOWED)
    if said := "; ".join(facts) or reason:
        first = said.split(maxsplit=1)[0]
        named = any(c.isupper() for c in first[1:]) or "::" in first  # a function's name stays as it is
        yield f"{said if named else opening(said)}."


def _profiled(times: StepTimes) -> tuple[str, str]:
    """(how much longer the profiler makes steps, both lengths), in words; empty where that is little."""
    if times.profiled is None or times.unprofiled is None or times.unprofiled.median_ns <= 0:
        return "", ""
    with_it, without = times.profiled.median_ns, times.unprofiled.median_ns
    if with_it < _LONGER * without:
        return "", ""
    said = f"Steps take {brief(with_it)} with the profiler, {brief(without)} without: it slows the host."
    return f"; the profiler makes steps {significant(with_it / without)} times as long", said


def _profiler(ranks: Sequence[Rank], seen: Evidence) -> Iterator[str]:
    """What the capture itself did to the steps."""
    if words := _profiled(seen.step_times)[1] or account.slowed_words(ranks, seen.slowed_by):
        yield words.strip()
