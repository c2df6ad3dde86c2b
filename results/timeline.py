"""One step of every rank as a picture, in few enough segments to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median_low
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured

TrackKind = Literal["ledger", "compute", "communication", "host", "passes"]


TYPICAL_FRAC = 0.02
"""A step is typical where its length is the typical one within this."""
_UNEVEN = 1.25


def typical_ns(length_ns: Sequence[int]) -> tuple[int, str]:
    """(the length of a typical step, what it is of all): the lower median; the mean, of which the report
    speaks, where that is so much longer that a median step does not show what is lost.

    >>> typical_ns([100, 110, 120, 130]), typical_ns([100, 100, 400])
    ((110, 'median'), (200, 'mean'))
    """
    middle, mean = median_low(length_ns), round(fmean(length_ns))
    return (mean, "mean") if mean > _UNEVEN * middle else (middle, "median")


@dataclass(frozen=True, kw_only=True)
class TimelineTrack:
    """Segments in columns of one length, by start time; what lies between two of them is nothing. Of the
    ledger they tile the step, and their sums by code are the step's ledger exactly."""

    kind: TrackKind
    """ledger: leaves. compute: kernel classes. communication: dimensions, hidden and exposed. host: CUDA
    calls of launching threads, data loading, garbage collection. passes: forward and backward passes of
    micro-batches."""
    codes: list[str]
    """What `code` counts."""
    names: list[str]
    """What `name` counts: kernels, collectives, micro-batches."""
    start_ns: list[int]
    """Since the rank's step began."""
    duration_ns: list[int]
    code: list[int]
    name: list[int]
    """Of the longest interval in it; -1 none."""
    stretches: list[int]
    """How many intervals of its code a segment stacks. 1: drawn at its own time; else within its column."""
    count: list[int]
    """What began in it: of compute kernels, on the host calls, else kernels and copies."""


@dataclass(frozen=True, kw_only=True)
class TimelineRank:
    """One rank's step."""

    rank: int | None
    label: str
    step: str
    """Empty where the window is not made of steps: then it is the window, of a very full one the middle."""
    start_ns: int
    """On the capture's clock."""
    duration_ns: int
    offset_ns: int
    """When it begins on the picture: after the first of the ranks that are aligned; 0 where ranks show
    different steps."""
    aligned: bool
    """Whether its clock was compared with those of most ranks; if not, it starts at 0."""
    tracks: list[TimelineTrack]


@dataclass(frozen=True, kw_only=True)
class Timeline(Measured):
    """One step over all ranks: of those that ranks find typical (as long as their median within 2 %, or as
    near to that as any) the one that most of them do."""

    step: str
    """The step that every rank shows; empty where they show different ones or have none."""
    resolution_ns: int | None
    """Clock error between ranks; null: one clock, unknown, or ranks that show different steps."""
    ranks: list[TimelineRank]
    left_out: int
    """Ranks of the job that are not drawn."""
    notes: list[str]
