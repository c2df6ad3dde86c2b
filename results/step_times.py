"""How long the steps of a job take: profiled and not, warm-up apart, outliers explained."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
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
    """Coefficient of variation: standard deviation by mean."""
    mean_ns: int | None = None
    """Shares and gains are of the mean. None in a diagnosis of an earlier version."""


@dataclass(frozen=True, kw_only=True)
class WarmUp(Measured):
    """First steps that are slower than the rest."""

    steps: int | None
    last_step: int | None
    """Number of the last one; None where there is none."""
    excess_ns: int | None
    """By how much they took longer together than as many steady ones."""


@dataclass(frozen=True, kw_only=True)
class ProfilerOverhead(Measured):
    """Median of profiled steps / median of steady unprofiled steps - 1, as logged."""

    frac: float | None
    low_frac: float | None
    """The true ratio of medians lies between these with about 80 % confidence (each median with 90 %; below
    five steps with less, the reason says so)."""
    high_frac: float | None
    profiled_steps: int | None
    unprofiled_steps: int | None


@dataclass(frozen=True, kw_only=True)
class LogAgreement(Measured):
    """Analysed step times against the logged times of the same steps: analysed / logged - 1."""

    steps: int | None
    """Pairs of (rank, step) compared."""
    median_frac: float | None
    total_frac: float | None
    """The same of all analysed time over all logged time."""
    worst_frac: float | None
    """The one that is farthest from 0."""
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
    """On the rank that explains it; of a logged step, the median over ranks."""
    excess_ns: int
    """Above the median: by more than 5 scaled MADs and 2 %."""
    ranks: int
    """Devices on which the step is an outlier; of a logged step the ranks that logged it."""
    label: str | None
    """The rank that explains it: of those where the step is an outlier, the one whose own leaves (all but
    exposed communication, which is waiting for others) grew most. None for a logged step."""
    leaf: str | None
    """The leaf that grew most there; None with the reason where none grew by half of the excess."""
    leaf_growth_ns: int | None
    grew_on: int = 0
    """Devices on which that leaf grew most; 0 where none is named, and of a logged step."""
    growth: list[LeafGrowth]
    """Every leaf that grew by more than a tenth of the excess, the largest first."""
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
class StepLevel:
    """Steps in a row that take alike."""

    first_step: int
    steps: int
    median_ns: int


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
    """Analysed ones first."""
    outliers_left_out: int
    ranks: list[RankStepTimes]
    levels: list[StepLevel] = field(default_factory=list)
    """Of the logged steps that were not profiled, warm-up left out: more than one where the job became slower
    or faster for good, by more than its scatter explains. The last ones where they are many."""
    captured_level: int | None = None
    """Place in `levels` of that in which steps were profiled; None where none was logged."""
