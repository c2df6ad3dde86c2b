"""The order of captures, which must not depend on that of the files."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.measure import CaptureMeasurement


def in_rank_order(captures: Sequence[CaptureMeasurement]) -> list[CaptureMeasurement]:
    """By the ranks that captures say they are, as given where one does not say: which of two equals is named,
    and the clock that others are held against, must not depend on the order of files."""
    ranks = [min((r.device.rank for r in c.ranks if r.device.rank is not None), default=-1) for c in captures]
    if -1 in ranks:
        return list(captures)
    return [captures[i] for i in sorted(range(len(captures)), key=ranks.__getitem__)]
