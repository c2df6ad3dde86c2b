"""How rules write shares and times in evidence and reasons: as the report writes its own."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case


def per_cent(frac: float, places: int = 1) -> str:
    """0.057 is "5.7 %"; what is not zero is never written as zero: 0.0001 is "<0.1 %",
    and what is not all never as all: 0.9999 is ">99.9 %".

    places: digits behind the point.
    """
    least = 10.0**-places
    if frac and abs(100 * frac) < least / 2:
        return f"{'<' if frac > 0 else '>-'}{least:.{places}f} %"
    if frac < 1 and 100 * (1 - frac) <= least / 2:
        return f">{100 - least:.{places}f} %"
    return f"{100 * frac:.{places}f} %"


def time_evidence(
    case: Case, label: str, share: float, of: Callable[[RankMeasurement], int]
) -> list[Evidence]:
    """The share of the window, mean over ranks, and where there are steps the milliseconds of one.

    share: what `case.share(of)` gave.
    """
    evidence = [Evidence(label=f"{label}, mean over ranks", value=per_cent(share))]
    if (ms := case.per_step_ms(of)) is not None:
        evidence.append(Evidence(label="of a step", value=f"{ms:.3g} ms"))
    return evidence
