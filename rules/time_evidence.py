"""How rules state that something takes a share of the time."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.case import Case
from perfdoc.rules.per_cent import per_cent
from perfdoc.rules.rule import Evidence


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
