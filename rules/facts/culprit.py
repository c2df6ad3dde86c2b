"""The causes that the replay of all ranks' recorded operations finds, and what each costs."""

from __future__ import annotations

from collections import Counter
from math import inf

from perfdoc.results.losses import largest_loss
from perfdoc.results.replay import WITHOUT_STRAGGLER, Gain
from perfdoc.results.what_if import CauseKind, WhatIfAnalysis, WhatIfCause
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import upper_bound
from perfdoc.simulator.replay.proposals import change_title

LEADS_FRAC = 0.05
"""Of the step: a cause that costs as much is named before all else."""
FIRES_FRAC = 0.03
"""Of the step: one that costs as much is a problem."""
ONE_STEP_FRAC = 0.15
"""Of what one step shows, either way: of several the scatter is known. As the replay of even ranks has it."""
AS_MUCH = 0.5
"""Of what something else costs: about as much."""
MAX_GAP_FRAC = 0.25
"""Of the measured step, left out of the replay as launch delays: with more of them nothing leads."""
ALL_CURED = "Capture again with all these hosts cured: none is late where others are not."
"""Of hosts late in turn, how to see that they were."""


def cause_of(found: WhatIfAnalysis | None, *kinds: CauseKind) -> WhatIfCause | None:
    """The costliest cause of these kinds, if it is worth a finding."""
    if found is None or not found.step_ns:
        return None
    large = [c for c in found.causes if c.kind in kinds and c.saved_ns >= FIRES_FRAC * found.step_ns]
    return max(large, key=lambda c: c.saved_ns, default=None)


def leading(found: WhatIfAnalysis | None) -> list[WhatIfCause]:
    """The causes to name before all else, the costliest first; none where none is large, or the replay leaves
    out much of the step."""
    if found is None or not found.step_ns or not found.measured_ns:
        return []
    if found.step_ns < (1 - MAX_GAP_FRAC) * found.measured_ns:
        return []
    large = [c for c in found.causes if c.saved_ns >= LEADS_FRAC * found.step_ns]
    # A bound leads only where nothing better is known, and sizes do not explain what it bounds.
    named = [c for c in large if c.kind != "not_captured"]
    return named or [c for c in large if c.low_ns >= LEADS_FRAC * found.step_ns]


def is_as_much(case: Case, gain: Gain | None, *, leads: bool = False) -> bool:
    """Whether it costs about as much as the largest loss. leads: or is no trifle, where that is waiting."""
    costs = None if gain is None else case.share_of_unit(gain.size_ms)
    loss, lost = largest_loss([r.ledger for r in case.ranks])
    least = LEADS_FRAC if leads and loss.startswith("exposed_comm") else inf
    return costs is not None and costs >= min(least, AS_MUCH * lost)


def waiting_leads(case: Case, part: float | None, *, late: bool) -> bool:
    """Whether waiting is what the bar shows, most of it, and for nobody whom another rule names. part: of a
    step, waiting; late: such a rank is known."""
    loss, lost = largest_loss([rank.ledger for rank in case.ranks])
    most = (part or 0.0) >= max(LEADS_FRAC, lost / 2)
    return most and loss.startswith("exposed_comm") and not late and not leading(case.what_if)


def waits_in(case: Case, cause: WhatIfCause | None) -> str:
    """In which communication the peers of late ranks are exposed longest, `TP all-reduce`; empty where none
    is."""
    late = () if cause is None or cause.is_in_turn else cause.ranks
    exposed: Counter[str] = Counter()
    for rank, device in zip(case.ranks, case.job.devices, strict=False):
        for row in () if device.rank in late else rank.communication:
            known = "" if row.dimension in ("unknown", "other") else f"{row.dimension.upper()} "
            exposed[f"{known}{row.collective.replace('_', '-')}"] += row.exposed_ns
    return next((name for name, ns in exposed.most_common(1) if ns), "")


def gain_of(case: Case, cause: WhatIfCause) -> Gain:
    """What a step gains without it; of a long stage at least what spreading its excess over all stages
    does."""
    if cause.kind == "not_captured":
        said = "all waiting for ranks that were not captured, transfer included"
        return upper_bound(cause.saved_ns / 1e6, said)
    low, mid, high = cause.low_ns, cause.saved_ns, cause.high_ns
    said = "replayed from the recorded operations of all ranks, launch delays left out"
    if cause.is_in_turn:
        said = "replayed from the recorded operations of all ranks, with the gaps before collectives"
    if cause.kind == "late_stage":
        said = "replayed with the waits of the other replicas for ranks that were not captured"
    if cause.kind == "uneven_data" and cause.note:
        said = f"replayed {cause.note}; at most all waiting for other ranks, transfer included"
    if case.what_if.steps == 1:
        low, high = round(low * (1 - ONE_STEP_FRAC)), round(high * (1 + ONE_STEP_FRAC))
    if cause.even_ns is not None and case.what_if.step_ns is not None:
        low = mid = max(0, case.what_if.step_ns - cause.even_ns)
        high = max(high, cause.saved_ns)
        said += "; layers moved, at most all of the excess gone"
    if cause.kind == "late_host":
        high = max(high, _dry_beyond_ns(case, cause))
    if is_as_late(case, cause):
        return upper_bound(high / 1e6, "every host without what it does then, which its waits may hide")
    if _is_held_up(case, cause):
        return upper_bound(high / 1e6, f"{said}, which as they are let it save less")
    hidden = _garbage_collection_ns(case, cause)
    low -= hidden
    said += "; garbage collection that its wait hides may show then" if hidden else ""
    return Gain(
        low_ms=max(0, min(low, mid)) / 1e6,
        mid_ms=mid / 1e6,
        high_ms=max(high, mid) / 1e6,
        method="replay",
        assumptions=[said],
    )


def is_as_late(case: Case, cause: WhatIfCause) -> bool:
    """Whether some other process's host leaves its device without work for so long that, the late one cured,
    the others wait for that one; not of other causes, or where calls that are no wait may hold it up."""
    if cause.kind != "late_host":
        return False
    late: dict[tuple[int, int], int] = {}
    others: dict[tuple[int, int], tuple[int, int]] = {}
    ranks = [(rank, (i, rank.device.process)) for i, c in enumerate(case.captures) for rank in c.ranks]
    for (rank, process), device, label in zip(ranks, case.job.devices, case.job.labels, strict=True):
        steps, n = rank.host_steps.steps, max(len(rank.host_steps.steps), 1)
        works, dry = sum(step.host_ns for step in steps) // n, rank.host_steps.dry_ns // n
        if device.rank in cause.ranks or label in cause.captures:
            late[process] = dry
        else:
            others[process] = works, dry
    found = [each for process, each in others.items() if process not in late and each[0]]
    if not found or not min(late.values(), default=0):
        return False
    waits = max(works for works, _ in found) + cause.saved_ns <= (case.what_if.measured_ns or 0)
    return waits and max(late.values()) - max(dry for _, dry in found) < cause.low_ns


def _is_held_up(case: Case, cause: WhatIfCause) -> bool:
    """Whether the replay of every kernel, which has the launches, promises less for a slow rank."""
    names = [*cause.captures, *(f"rank {number}" for number in cause.ranks)]
    if cause.kind != "slow_rank" or len(names) > 1:
        return False
    ours = [p for p in case.gains.predictions if p.key.startswith(WITHOUT_STRAGGLER)]
    less = [p for p in ours if (p.high_ns or cause.low_ns) < cause.low_ns]
    return any(p.change == change_title(p.key, names[0]) for p in less)


def _dry_beyond_ns(case: Case, cause: WhatIfCause) -> int:
    """Of a step: how much longer than any other a late rank, or where all are late any, has an idle device.
    Peers as recorded may have waited for it where no operation shows."""
    idle: dict[bool, list[int]] = {True: [], False: []}
    for rank, device, label in zip(case.ranks, case.job.devices, case.job.labels, strict=True):
        is_late = device.rank in cause.ranks or label in cause.captures
        idle[is_late].append(rank.ledger.idle.total // max(rank.window.steps, 1))
    return max(idle[True], default=0) - min(idle[False] or idle[True], default=0)


def _garbage_collection_ns(case: Case, cause: WhatIfCause) -> int:
    """Of a step, on the rank that has most and keeps it: waits for the cause may hide so much."""
    goes = cause.ranks if cause.kind == "late_host" else []
    pairs = zip(case.ranks, case.job.devices, strict=True)
    kept = [rank for rank, device in pairs if device.rank not in goes]
    return max(((r.host.gc.total_ns or 0) // max(r.window.steps, 1) for r in kept), default=0)
