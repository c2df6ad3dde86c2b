"""Evidence shared by several rules."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case


def time_evidence(
    case: Case, label: str, share: float, of: Callable[[RankMeasurement], int]
) -> list[Evidence]:
    """The share of the window, mean over ranks, and the time per step where there are steps.

    share: the result of `case.share(of)`.
    """
    evidence = [Evidence(label=f"{label}, mean over ranks", value=per_cent(share))]
    if (ms := case.per_step_ms(of)) is not None:
        evidence.append(Evidence(label="per step", value=brief(ms * 1e6)))
    return evidence
