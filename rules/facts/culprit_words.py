"""What the replay of all ranks' recorded operations finds, in sentences: what, what it costs, what next."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results.figures import brief, per_cent, plural, significant
from perfdoc.results.names import opening, shorten, within
from perfdoc.results.replay import Prediction
from perfdoc.results.what_if import WhatIfAnalysis, WhatIfCause
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.culprit import is_as_late, leading, waits_in

NEARLY_EVERY = 0.995
"""Of the steps."""
MAX_NAMED = 4
"""Ranks in a sentence."""


def why_blamed(found: WhatIfAnalysis, first: WhatIfCause | None, moved: Prediction | None = None) -> str:
    """What the step would take without the cause that the verdict names, and the next one; of ranks that were
    not captured, the most that may be waiting for them. Empty where the verdict names none of them.

    moved: whole layers, where that is predicted: a long stage then has that price, and even stages, which
    layers seldom divide into, are not spoken of."""
    if first is None or found.step_ns is None:
        return ""
    if first.kind == "not_captured":
        where = " and ".join(first.kinds_of_wait[:2]) or "messages and collectives"
        return f"The ranks that were captured wait in {where}; its transfer counts too: at most so much."
    whom = stage_words(first, found.pp) if first.kind == "long_stage" else "it" if is_one(first) else "they"
    without = f"if {whom} took as long as the others"
    if first.kind == "uneven_data":
        without = "evened out on the captured ranks alone" if first.note else "evened out"
    elif first.kind == "uneven_experts":
        without = "with even experts"
    elif first.kind not in ("long_stage", "slow_rank", "late_host"):
        without = "without that"
    left_ns, then, spread = found.step_ns - first.saved_ns, "", ""
    if first.even_ns is not None:
        spread = f", {brief(first.even_ns)} with layers moved so that stages take equally long"
        if moved is not None and (saved_ms := moved.gain.mid_ms or 0.0) > 0:
            spread = f", {brief(found.step_ns - round(saved_ms * 1e6))} with whole layers moved"
    for cause in [c for c in leading(found) if c != first][:1]:
        what = does(cause, found)
        then = f": {within(what)}, another {brief(cause.saved_ns)}"
        left_ns, without, spread = left_ns - cause.saved_ns, "without it and this", ""
    # Of a late host the verdict says who waits for it.
    shows = f"{does(first, found)}. " if first.kind == "late_host" else ""
    measured = brief(found.measured_ns or found.step_ns)
    now = "as measured" if brief(found.step_ns) == measured else f"({measured} measured)"
    return f"{shows}Simulated: {brief(found.step_ns)} {now}, {brief(left_ns)} {without}{spread}{then}."


def waits_for(case: Case, cause: WhatIfCause) -> str:
    """What it does; of late hosts who waits for them, and where: that is what the bar shows."""
    if cause.kind != "late_host":
        return does(cause, case.what_if)
    where = waits_in(case, cause)
    if cause.is_in_turn:
        return f"{opening(who(cause))} wait{f' in {where}' if where else ''} for one another's hosts in turn"
    waiting = "1 rank waits" if cause.peers == 1 else f"{cause.peers:,} ranks wait"
    hosts = "its host process" if is_one(cause) else "their host processes"
    said = f"{waiting}{f' in {where}' if where else ''} for {who(cause)}, launched late by {hosts}"
    return f"{said}; another host is as busy elsewhere in the step" if is_as_late(case, cause) else said


LOOK_AT_HOST = (
    "For each PID: `pidstat -u 1` (others busy: move them), `taskset -cp PID` (few cores: add), "
    "`py-spy dump --pid PID` (waits: mend)"
)
"""What to check of a late host, without a full stop."""


def look_at_device(case: Case) -> str:
    """What to check of a device that computes slowly, with the command, without a full stop."""
    if case.on_host:
        return LOOK_AT_HOST
    known = {
        "nvidia": "Run there `nvidia-smi dmon -i N -s pucv`; pviol: power cap, tviol: cool, else swap",
        "amd": "Run there `amd-smi monitor`; at power cap: raise it, hot: cool, else swap",
    }
    return known.get(case.program.vendor, "Look there and on a peer: clock, heat, power, load")


def cure(cause: WhatIfCause) -> str:
    """What to do, without a full stop; of a slow rank see `look_at_device`."""
    if cause.kind == "late_host":
        return LOOK_AT_HOST
    if cause.kind == "long_stage":
        if cause.ranks or cause.captures:
            return f"Check {who(cause)}'s clocks, temperature and host, or give it fewer layers: {cause.note}"
        return "Give it fewer layers"
    if cause.kind in ("late_stage", "not_captured"):
        return f"Capture {who(cause) if cause.ranks else 'the missing ranks'} in the same steps"
    if cause.kind == "slow_link":
        look = "Check the links of these ranks: NIC, cable, switch port, the interface that NCCL takes"
        return f"{look}, or where ranks are placed if these alone span servers"
    if cause.kind == "uneven_experts":
        return "A balancing loss takes many steps to work"
    return "Sort or pack sequences by length over micro-batches and replicas"


def does(cause: WhatIfCause, found: WhatIfAnalysis) -> str:
    """What it shows, with a capital and without a full stop."""
    every = cause.recurrence_frac >= NEARLY_EVERY
    whole = "in every step" if found.steps > 1 else "in the one step captured"
    often = whole if every else f"in {per_cent(cause.recurrence_frac, 0)} of the steps"
    often = f"from {shorten(cause.since, 48)} on" if cause.since else often
    times = f"{significant(cause.ratio, 3)} times"
    peers = "peer" if cause.peers == 1 else plural(cause.peers, "peer")
    many = not is_one(cause)
    name = opening(who(cause))
    whose = "their" if many else "its"
    if cause.kind == "slow_rank":
        return f"{name} {'compute' if many else 'computes'} {times} as long as {whose} {peers} {often}"
    if cause.is_in_turn:
        return f"{name} take {times} as long as the others {often}, each at other places of the step"
    if cause.kind == "late_host":
        takes = "take" if many else "takes"
        return f"{name} {takes} {times} as long as {whose} {peers} {often}, mostly in gaps between kernels"
    if cause.kind == "long_stage":
        stage = stage_words(cause, found.pp)
        alone = f" ({who(cause)})" if cause.ranks or cause.captures else ""
        others = "the other" if cause.peers == 1 else f"the other {cause.peers}"
        return f"{opening(stage)}{alone} computes {times} as long as {others} {often}"
    if cause.kind == "not_captured":
        whom, those = _absent(cause, found), "it" if cause.ranks else "them"
        return f"All {found.ranks} captured ranks wait for {whom}; capture {those} next"
    if cause.kind == "late_stage":
        others = "the other one does" if cause.peers == 1 else f"the other {cause.peers} do"
        whom = f"{times} as long for {_absent(cause, found)},"
        return f"One replica waits {whom} as {others} {often}; capture it next"
    if cause.kind == "slow_link":
        return f"{_link(cause, times)} {often}"
    if cause.kind == "uneven_experts":
        whose = (
            f"{who(cause)} {'have' if many else 'has'} most"
            if cause.ranks or cause.captures
            else "another rank's from layer to layer"
        )
        among = f"of {cause.peers + 1} ranks" if cause.peers else "rank"
        return (
            f"Tokens fall unevenly on experts: the busiest {among} computes {times} the "
            f"mean {often}, attention alike ({whose})"
        )
    together = "" if cause.correlation is None else f" (correlation {cause.correlation:.2f})"
    return (
        "Sequence lengths are uneven over micro-batches and replicas: forward and backward of a micro-batch "
        f"are long together{together}, others in the next step, the longest {times} the mean"
    )


def stage_words(cause: WhatIfCause, pp: int | None) -> str:
    """`the last stage`"""
    if cause.stage == 0:
        return "the first stage"
    return "the last stage" if pp is not None and cause.stage == pp - 1 else f"stage {cause.stage}"


def _absent(cause: WhatIfCause, found: WhatIfAnalysis) -> str:
    """For whom captured ranks wait."""
    if len(cause.ranks) == 1:
        return f"rank {cause.ranks[0]}, which was not captured"
    if cause.ranks:
        where = "" if cause.stage is None or found.pp in (None, 1) else f" of {stage_words(cause, found.pp)}"
        return f"a rank{where} that was not captured, one of {who(cause)}"
    return "ranks that were not captured"


def _link(cause: WhatIfCause, times: str) -> str:
    """What is slow on it, against others."""
    what = " and ".join(cause.kinds_of_wait)
    group = "pair" if "messages" in what else "group"
    verb = "take" if group == "pair" or " and " in what else "takes"
    others = f"another {group}" if cause.peers == 1 else f"{cause.peers:,} other {group}s"
    return f"{opening(what)} of {who(cause)} {verb} {times} as long as of {others}"


def who(cause: WhatIfCause) -> str:
    """`ranks 0 and 6`; of those without a number where they are."""
    if cause.captures:
        return listed([*(f"rank {r}" for r in cause.ranks), *cause.captures])
    each = [str(r) for r in cause.ranks] or ["without a number"]
    return f"rank{'' if is_one(cause) else 's'} {listed(each, ', ')}"


def listed(names: Sequence[str], between: str = " and ") -> str:
    """`rank 1 and rank 2`, of many the first ones; names may have commas of their own."""
    more = len(names) - MAX_NAMED
    *first, last = [*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
    return f"{between.join(first)}{' and ' if first else ''}{last}"


def is_one(cause: WhatIfCause) -> bool:
    """Whether it is about no more than one rank."""
    return len(cause.ranks) + len(cause.captures) <= 1
