"""PD202: Python's garbage collector stops the step."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.rules.case import Case
from perfdoc.rules.gain import ceiling, predicted, worth_frac
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict
from perfdoc.simulator.replay.predict import Gain

META = Meta(
    code="PD202",
    title="Garbage collection inside steps",
    why="A collection stops the thread that launches, and ranks that collect at different times wait for one "
    "another: every rank's pause becomes everybody's.",
    sources=("seed 000", "seed 001"),
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks; or what the replay says that the step would save, waits of other ranks
included."""
INTERVAL_STEPS = 100
"""Between collections that all ranks make at the same step."""


def evaluate(case: Case) -> Verdict:
    """Fires where collections hold the device up for `MIN_FRAC` of the window."""
    if not any(r.host.gc.state == "measured" for r in case.ranks):
        return Verdict(state="skipped", reason=case.ranks[0].host.gc.reason if case.ranks else "no ranks")
    share = case.share(lambda r: r.ledger.idle_ns["gc"])
    if share is None:
        return Verdict(state="skipped", reason="every window is empty")
    count = sum(r.host.gc.count or 0 for r in case.ranks)
    evidence = [
        Evidence(label="idle behind garbage collection, mean over ranks", value=f"{share:.1%}"),
        Evidence(label="collections, all ranks", value=str(count)),
    ]
    if max(share, worth_frac(case, "without_gc")) < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    return Verdict(
        state="fires",
        reason="collections run while the device has nothing to do",
        evidence=evidence,
        remedy=""
        if case.configuration.values
        else f"Call gc.disable(), and gc.collect() every {INTERVAL_STEPS} steps on all ranks at once.",
        advice=_advice(case),
        gain=_as_often_as_set(
            case,
            predicted(case, "without_gc")
            or ceiling(case, lambda r: r.ledger.idle_ns["gc"], "the idle time behind collections"),
        ),
        verify="Run again: idle.gc in the ledger is gone from all but every hundredth step.",
        false_alarm="A profiler that keeps many Python objects makes collections longer than they are "
        "without it.",
    )


def _as_often_as_set(case: Case, gain: Gain | None) -> Gain | None:
    """A window of few steps may hold a collection that only every so many steps has: the gain of a step is
    then what the setting says, not what the window happens to show."""
    known, interval = case.setting("manual_gc_interval")
    steps = min((len(r.window.steps) for r in case.ranks), default=0)
    count = max((r.host.gc.count or 0 for r in case.ranks), default=0)
    if gain is None or not (known and case.is_set_to("manual_gc", True) and isinstance(interval, int)):
        return gain
    if not count or not steps or interval <= 0 or steps >= interval * count:
        return gain
    factor = steps / (interval * count)
    low, mid, high = (
        None if v is None else round(v * factor, 6) for v in (gain.low_ms, gain.mid_ms, gain.high_ms)
    )
    said = f"scaled to one collection every {interval} steps, as is set; the window of {steps} holds {count}"
    return replace(gain, low_ms=low, mid_ms=mid, high_ms=high, assumptions=[*gain.assumptions, said])


def _advice(case: Case) -> list[Advice]:
    why = "all ranks collect at the same, rare steps"
    interval = Advice(
        knob="manual_gc_interval", to=INTERVAL_STEPS, why=why, costs="some host memory until then"
    )
    known, now = case.setting("manual_gc_interval")
    if known and isinstance(now, int) and now >= INTERVAL_STEPS:
        return []
    return [Advice(knob="manual_gc", to=True, why="Python no longer decides when"), interval]
