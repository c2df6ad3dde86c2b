"""Captures of one job are of different ranks: what was given twice would count twice everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.traces import TraceError


def check_distinct(captures: Sequence[CaptureMeasurement]) -> None:
    """Refuse two files of the same content, and two captures that say that they are one rank.

    A profiler with a repeating schedule writes several captures of each rank into one folder, and shells copy
    files: the sums over ranks, and who waits for whom, would be wrong without a sign of it.
    Raises TraceError, which names the second.
    """
    contents: dict[str, Path] = {}
    ranks: dict[int, Path] = {}
    for capture in captures:
        if (first := contents.setdefault(capture.sha256, capture.path)) != capture.path:
            raise TraceError(
                capture.path, f"is a copy of {first}, and would count twice.", "Give one of them."
            )
        for rank in sorted({r.device.rank for r in capture.ranks if r.device.rank is not None}):
            if (first := ranks.setdefault(rank, capture.path)) != capture.path:
                raise TraceError(
                    capture.path,
                    f"says that it is rank {rank}, as {first} does.",
                    "Give one capture of each rank, all of the same steps of one job.",
                )
