"""PD202: Python's garbage collector stops the step."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, predicted, worth_frac
from perfdoc.rules.engine.needs import WINDOW, given, on_some_rank
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.idle import MIN_GC_FRAC

META = Meta(
    code="PD202",
    title="Garbage collection inside steps",
    why="A collection stops the thread that launches, and ranks that collect at different times wait for one "
    "another: every rank's pause becomes everybody's.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    time=("idle.gc",),
    needs=(on_some_rank("traced garbage collection", lambda r: r.host.gc), WINDOW),
    advice=("host_gc", "scale_jitter"),
)

INTERVAL_STEPS = 100
"""Between collections that all ranks make at the same step."""

_BY_HAND = f"Call gc.disable(), and gc.collect() every {INTERVAL_STEPS} steps on all ranks at once."
_OTHERS = (
    "Find who collects: the settings leave nothing to change, so collections are the program's own "
    "(gc.collect(), or a library that calls it)."
)


def evaluate(case: Case) -> Verdict:
    """Fires where collections hold the device up for `idle.MIN_GC_FRAC` of the window."""
    share = given(case.share(lambda r: r.ledger.idle_ns["gc"]))
    count = sum(r.host.gc.count or 0 for r in case.ranks)
    evidence = [
        Evidence(label="idle behind garbage collection, mean over ranks", value=per_cent(share)),
        Evidence(label="collections, all ranks", value=str(count)),
    ]
    factor, said = _as_often(case)
    # Where a log says how often the run collects, what was predicted is of that already.
    logged = case.gains.collections is not None
    worth = worth_frac(case, "without_gc") * (1.0 if logged else factor)
    if max(share * factor, worth) < MIN_GC_FRAC:
        return Verdict(state="passes", reason=said, evidence=evidence)
    gain = predicted(case, "without_gc")
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.gc"),
        reason="collections run while the device has nothing to do",
        evidence=evidence,
        remedy="" if case.configuration.values else _BY_HAND,
        advice=_advice(case, gain if logged else _scaled(gain, factor, said), logged=logged),
        otherwise=_OTHERS,
        gain=_scaled(
            ceiling(case, lambda r: r.ledger.idle_ns["gc"], "the idle time behind collections"), factor, said
        ),
        verify="Run again: idle.gc in the ledger is gone from all but every hundredth step.",
        false_alarm="A profiler that keeps many Python objects makes collections longer than they are "
        "without it.",
    )


def _interval(case: Case) -> int | None:
    """Steps between collections by the settings, 0 for never; None where that is not known. Without
    manual_gc an interval means nothing."""
    known, interval = case.setting("manual_gc_interval")
    if not known or not case.is_set_to("manual_gc", True):
        return None
    return interval if isinstance(interval, int) and not isinstance(interval, bool) else None


def _as_often(case: Case) -> tuple[float, str]:
    """By what the window's collections are scaled, and why: as the step log has them, else as is set."""
    logged = case.gains.collections
    return _as_often_as_set(case) if logged is None else (logged.factor, logged.said)


def _as_often_as_set(case: Case) -> tuple[float, str]:
    """By what a window of few steps is to be scaled that happens to hold a collection which only every so
    many steps has, and why. At an interval of 0 collections are not made at the trainer's word: 1."""
    interval = _interval(case)
    steps = min((len(r.window.steps) for r in case.ranks), default=0)
    count = max((r.host.gc.count or 0 for r in case.ranks), default=0)
    if not interval or not count or not steps or steps >= interval * count:
        return 1.0, ""
    said = f"scaled to one collection every {interval} steps, as is set; the window of {steps} holds {count}"
    return steps / (interval * count), said


def _scaled(gain: Gain | None, factor: float, said: str) -> Gain | None:
    if gain is None or not said:
        return gain
    low, mid, high = (
        None if v is None else round(v * factor, 6) for v in (gain.low_ms, gain.mid_ms, gain.high_ms)
    )
    assumptions = [*gain.assumptions, said]
    # No longer what the prediction says, so that what was simulated with it does not hold for this.
    return replace(gain, low_ms=low, mid_ms=mid, high_ms=high, assumptions=assumptions, key="")


def _advice(case: Case, gain: Gain | None, *, logged: bool) -> list[Advice]:
    """Rarer collections, never more of them: an interval of 0 under manual_gc means never. logged: of what
    is predicted those that stay are left out already."""
    manual = advise(knob="manual_gc", to=True, why="Python no longer decides when", gain=gain)
    rarer = advise(
        knob="manual_gc_interval",
        to=INTERVAL_STEPS,
        why="all ranks collect at the same, rare steps",
        costs="some host memory until then",
        gain=gain,
    )
    known, now = case.setting("manual_gc_interval")
    if case.is_set_to("manual_gc", True):
        if not known or not isinstance(now, int) or not 0 < now < INTERVAL_STEPS:
            return []
        if logged:
            return [rarer]
        rest = f"one collection stays every {INTERVAL_STEPS} steps, instead of every {now}"
        return [replace(rarer, gain=_scaled(gain, 1 - now / INTERVAL_STEPS, rest))]
    if known and isinstance(now, int) and now >= INTERVAL_STEPS:
        return [manual]
    if known and now == 0 and not case.setting("manual_gc")[0]:
        return []
    return [manual, rarer]
