"""The headline figures against an earlier measurement, and against what was aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FigureName = Literal["mfu", "step_time", "tokens_per_s_per_gpu", "peak_memory"]


@dataclass(frozen=True, kw_only=True)
class AgainstFigure:
    """One figure on both sides: a share of 1, nanoseconds, tokens/s or bytes."""

    figure: FigureName
    before: float
    now: float
    change_frac: float | None
    """Of before; None where that is 0."""
    noise_frac: float | None
    """A change up to this may be noise (99 %); None where the spread is not known."""
    within_noise: bool | None
    better: bool | None
    """None where nothing changed."""


@dataclass(frozen=True, kw_only=True)
class DifferentFact:
    """What is not the same on both sides, as text; None: not there."""

    fact: str
    before: str | None
    now: str | None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A figure that was aimed at, in its own unit: a share of 1, milliseconds, tokens/s or GiB."""

    figure: FigureName
    limit: float
    at_least: bool
    value: float | None
    state: Literal["met", "missed", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Against:
    """What was asked for with --baseline and --target."""

    state: Literal["compared", "incomparable", "no_baseline"]
    """no_baseline: none was given."""
    reason: str
    """Why the two are not comparable; empty otherwise."""
    baseline: str
    """Name of the file or folder."""
    kind: Literal["diagnosis", "gate", ""]
    """gate: the accepted runs of `perfdoc gate`, medians of unprofiled steps; peak memory is what was
    reserved."""
    runs: int
    """Of the baseline."""
    figures: list[AgainstFigure]
    differences: list[DifferentFact]
    """Facts and settings that differ, also where the two are comparable."""
    notes: list[str]
    targets: list[Target]
