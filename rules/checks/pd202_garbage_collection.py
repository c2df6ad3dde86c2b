"""A collection stops the launching thread. Ranks that collect at different times wait for each other, so each
rank's pause delays all ranks."""

from dataclasses import replace

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import Gain, RankMeasurement, ceiling, predicted, worth_frac
from perfdoc.rules.engine.needs import WINDOW, given, on_some_rank
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.culprit import waiting_leads
from perfdoc.rules.facts.graphs import MIN_GC_FRAC

META = Meta(
    title="Garbage collection inside steps",
    action="Collect garbage between steps, on all ranks at once",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="host_overhead",
    time=("idle.gc",),
    with_it=("other ranks' waits for it", "launches that it delays"),
    needs=(on_some_rank("traced garbage collection", lambda r: r.host.gc), WINDOW),
    advice=("host_gc", "scale_jitter"),
    for_servers=True,
)

INTERVAL_STEPS = 100
"""Between collections that all ranks run at the same step."""
_IN_TURN = 1.5
"""Of what a mean rank idles in them: where all save as much without, ranks wait for one another's."""

_BY_HAND = f"Call gc.disable(), and gc.collect() every {INTERVAL_STEPS} steps on all ranks at the same step."
_OTHERS = (
    "Find the caller: no setting is left to change, so the program itself collects (gc.collect(), or a "
    "library that calls it)."
)

_UNKNOWN = (
    "Garbage is collected by hand already: name its interval in the settings, or find who calls gc.collect()."
)
"""Where manual collection is on and how often is not known."""


def evaluate(case: Case) -> Verdict:
    """Fires if the device idles during collections for `graphs.MIN_GC_FRAC` of the window."""
    share = given(case.share(lambda r: r.ledger.idle.gc))
    count = sum(r.host.gc.count or 0 for r in case.ranks)
    evidence = [
        ("garbage-collection idle time, mean over ranks", per_cent(share)),
        ("collections, all ranks", str(count)),
    ]
    factor, said = _as_often(case)
    # With the interval from a step log the prediction is scaled already.
    logged = case.gains.collections is not None
    part = worth_frac(case, "without_gc")
    if max(share * factor, part * (1.0 if logged else factor)) < MIN_GC_FRAC:
        return passes(evidence, said)
    gain = predicted(case, "without_gc")
    in_turn = part >= _IN_TURN * share and waiting_leads(case, part, late=case.job.skew.latest is not None)
    unknown = case.is_set_to("manual_gc", True) and not case.setting("manual_gc_interval")[0]
    return fires(
        blames="Ranks collect garbage at different times, and the others wait for each" if in_turn else "",
        reason="the device idles while the host collects garbage",
        evidence=evidence,
        remedy="" if case.configuration.values else _BY_HAND,
        advice=_advice(case, gain if logged else _scaled(gain, factor, said), logged=logged),
        otherwise=_UNKNOWN if unknown else _OTHERS,
        sized_by=said,
        gain=_scaled(ceiling(case, _collecting_ns, "all garbage collection", anywhere=True), factor, said),
        verify="Run again: idle.gc in the ledger remains in every hundredth step only.",
        false_alarm="A profiler that keeps many Python objects makes collections longer.",
    )


def _collecting_ns(rank: RankMeasurement) -> int:
    """All of it: what the queue hides of a collection may delay the launches behind it."""
    return max(rank.host.gc.total_ns or 0, rank.ledger.idle.gc)


def _as_often(case: Case) -> tuple[float, str]:
    """(factor for the window's collections, reason): by the step log, else by the settings, where the window
    is shorter than the interval but holds a collection. At an interval of 0 the trainer triggers none: 1."""
    if (logged := case.gains.collections) is not None:
        return logged.factor, logged.said
    interval = case.number("manual_gc_interval") if case.is_set_to("manual_gc", True) else None
    steps = min((r.window.steps for r in case.ranks), default=0)
    count = max((r.host.gc.count or 0 for r in case.ranks), default=0)
    if not interval or not count or not steps or steps >= interval * count:
        return 1.0, ""
    said = f"scaled to the set interval of {interval} steps; the window of {steps} has {count} collections"
    return steps / (interval * count), said


def _scaled(gain: Gain | None, factor: float, said: str) -> Gain | None:
    if gain is None or not said:
        return gain
    low, mid, high = (
        None if v is None else round(v * factor, 6) for v in (gain.low_ms, gain.mid_ms, gain.high_ms)
    )
    assumptions = [*gain.assumptions, said]
    # Scaled, so it is no longer the simulated prediction: no key.
    return replace(gain, low_ms=low, mid_ms=mid, high_ms=high, assumptions=assumptions, key="")


def _advice(case: Case, gain: Gain | None, *, logged: bool) -> list[Advice]:
    """Fewer collections, never more: an interval of 0 under manual_gc means never. logged: the prediction
    already excludes the collections that remain."""
    manual = advise(knob="manual_gc", to=True, why="Python no longer triggers collections", gain=gain)
    rarer = advise(
        knob="manual_gc_interval",
        to=INTERVAL_STEPS,
        why="all ranks collect at the same steps, rarely",
        costs="some host memory between collections",
        gain=gain,
    )
    known, now = case.setting("manual_gc_interval")
    if case.configuration.dialect == "nemo":  # a callback that takes both intervals, and is the switch
        return _of_the_callback(case, rarer)
    if case.is_set_to("manual_gc", True):
        if not known or not isinstance(now, int) or not 0 < now < INTERVAL_STEPS:
            return []
        if logged:
            return [rarer]
        rest = f"one collection per {INTERVAL_STEPS} steps remains, instead of one per {now}"
        return [replace(rarer, gain=_scaled(gain, 1 - now / INTERVAL_STEPS, rest))]
    if known and isinstance(now, int) and now >= INTERVAL_STEPS:
        return [manual]
    if known and now == 0 and not case.setting("manual_gc")[0]:
        return []
    return needing(manual, then=[rarer])


def _of_the_callback(case: Case, rarer: Advice) -> list[Advice]:
    """NeMo's, if it is not known to collect as rarely."""
    found = [rarer, advise(knob="manual_gc_interval_val", to=INTERVAL_STEPS, why="the same in validation")]
    return [p for p in found if (now := case.number(p.knob)) is None or 0 < now < INTERVAL_STEPS]
