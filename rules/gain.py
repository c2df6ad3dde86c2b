"""What a rule says that its advice gains."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.case import Case
from perfdoc.simulator.replay.predict import Gain


def predicted(case: Case, *keys: str) -> Gain | None:
    """The best of some predictions; None where none was made. Never their sum."""
    gains = [p.gain for key in keys if (p := case.prediction(key)) is not None and p.gain.method == "replay"]
    if gains:
        return max(gains, key=lambda g: (g.mid_ms or 0.0, g.low_ms or 0.0))
    ceilings = [
        p.gain for key in keys if (p := case.prediction(key)) is not None and p.gain.method == "ceiling"
    ]
    return max(ceilings, key=lambda g: g.high_ms or 0.0) if ceilings else None


def worth_frac(case: Case, *keys: str) -> float:
    """The largest share of a step that one of these changes was predicted to save; 0 where none was."""
    shares = [
        p.mid_ns / p.step_ns
        for key in keys
        if (p := case.prediction(key)) is not None and p.mid_ns is not None and p.step_ns
    ]
    return max(shares, default=0.0)


def ceiling(case: Case, of: Callable[[RankMeasurement], int], what: str) -> Gain | None:
    """At most all of something: no prediction, and labelled as none."""
    most = case.per_step_ms(of)
    if most is None:
        return None
    return Gain(
        low_ms=0.0,
        mid_ms=None,
        high_ms=most,
        method="ceiling",
        assumptions=[f"no more than {what} can be gained; how much of it, nothing here tells"],
    )
