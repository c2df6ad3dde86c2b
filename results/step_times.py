"""How long the steps of a job take: profiled and not, warm-up apart, outliers explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfdoc.results.quality import Measured


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Step times; percentiles interpolate linearly."""

    count: int
    median_ns: int
    p10_ns: int
    p90_ns: int
    min_ns: int
    max_ns: int
    variation_frac: float
    """Standard deviation by mean."""


@dataclass(frozen=True, kw_only=True)
class WarmUp(Measured):
    """First steps that are slower than the rest."""

    steps: int | None
    last_step: int | None
    excess_ns: int | None
    """By how much they took longer together than as many steady ones."""


@dataclass(frozen=True, kw_only=True)
class ProfilerOverhead(Measured):
    """Median of profiled steps / median of steady unprofiled steps - 1, as logged."""

    frac: float | None
    low_frac: float | None
    high_frac: float | None
    profiled_steps: int | None
    unprofiled_steps: int | None


@dataclass(frozen=True, kw_only=True)
class LogAgreement(Measured):
    """Analysed step times against the logged times of the same steps: analysed / logged - 1."""

    steps: int | None
    median_frac: float | None
    total_frac: float | None
    worst_frac: float | None
    bar_frac: float
    agrees: bool | None
    """Whether median_frac is within the bar."""


@dataclass(frozen=True, kw_only=True)
class LeafGrowth:
    """A leaf of the ledger and by how much it exceeds its median over the other steps."""

    leaf: str
    growth_ns: int


@dataclass(frozen=True, kw_only=True)
class OutlierStep:
    """A step that took much longer than the others."""

    source: Literal["analysed", "logged"]
    step: str
    duration_ns: int
    excess_ns: int
    """Above the median."""
    ranks: int
    label: str | None
    """The rank whose own leaves grew most; None for a logged step."""
    leaf: str | None
    """The leaf that grew most there; None with the reason where none grew by half of the excess."""
    leaf_growth_ns: int | None
    growth: list[LeafGrowth]
    reason: str


@dataclass(frozen=True, kw_only=True)
class RankStepTimes:
    """Step times of one rank; None where there are none."""

    rank: int | None
    label: str
    analysed: Distribution | None
    profiled: Distribution | None
    unprofiled: Distribution | None


@dataclass(frozen=True, kw_only=True)
class StepTimes(Measured):
    """Step times of a job. Of several ranks, a step's time is the median over them."""

    analysed: Distribution | None
    """Steps of the windows, on the devices."""
    profiled: Distribution | None
    """Logged steps that were profiled."""
    unprofiled: Distribution | None
    """Logged steps that were not; warm-up and the first step after profiled ones left out."""
    warmup: WarmUp
    overhead: ProfilerOverhead
    agreement: LogAgreement
    outliers: list[OutlierStep]
    outliers_left_out: int
    ranks: list[RankStepTimes]
