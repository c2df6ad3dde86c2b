"""Waiting between ranks: skew in collectives, stragglers, and pipeline idle time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured, State

_ACROSS_STAGES = ("pp", "other", "unknown")
"""Groups of these may span stages of a pipeline."""


def waits_by_schedule(dimension: str, pp: int | None) -> bool:
    """Whether ranks of such groups wait as stages of a pipeline end, one after another, and for no late rank.

    pp: stages; 0 several, unknown how many. Where it is not known, groups of embeddings and norms may span
    some; those of unknown dimension are assumed not to.
    """
    if dimension not in _ACROSS_STAGES or dimension == "pp":
        return dimension == "pp"
    return dimension != "unknown" if pp is None else pp != 1


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Residual difference of one collective's ends on aligned clocks, in ns; None: not measured."""

    p5: int | None
    """5th percentile, over all matched ends, of the end minus the mean of the collective's other ends."""
    p95: int | None


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """The clock of one rank's capture."""

    rank: int | None
    name: str
    """`rank 3`; the device and its capture where the captures do not number the ranks."""
    rank_evidence: str
    component: int
    """Ranks of one component were compared with each other; ranks of different ones were not."""
    source: Literal["one_clock", "ends", "bounds", "utc", "none"]
    """one_clock: in one capture with the reference. ends: aligned through matched ends. bounds: too few of
    those, so bounded by the order of messages (`resolution_ns`). utc: the captures' unchanged UTC epochs,
    which the ends agree with. none: nothing to compare with."""
    offset_ns: int | None
    """How far the clock was ahead of the reference's; None where a UTC epoch is missing."""
    drift_ppm: float | None
    """How much faster it runs, millionths; None where the matches do not cover enough time."""
    resolution_ns: int | None
    """Clock error against the reference; None if nothing was compared."""


@dataclass(frozen=True, kw_only=True)
class RankWait:
    """Communication of one rank in one dimension inside the window, as far as it could be matched.

    Sums over collectives; those overlap in time where the rank runs several at once.
    """

    rank: int | None
    name: str
    dimension: str
    collectives: int
    own_ns: int
    transfer_ns: int
    """Shortest duration of each collective over its ranks. An upper bound if a rank of the group was not
    captured: if that one is late, all others wait."""
    wait_ns: int
    """own - transfer."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One collective with a large skew."""

    dimension: str
    operation: str
    group: str
    ranks: int
    start_spread_ns: int
    transfer_ns: int | None
    """None where its completion is not known exactly."""
    first_rank: int | None
    first_name: str
    last_rank: int | None
    last_name: str
    step: int | None


LateCause = Literal[
    "compute", "waiting", "before", "host", "gc", "data", "dependency", "launch_latency", "copies", "other"
]
LATE_WORDS: Mapping[LateCause, str] = MappingProxyType(
    {
        "compute": "computes longer than the others",
        "waiting": "waits in another dimension and only passes the delay on",
        "before": "begins later",
        "host": "is launched late by its host process",
        "gc": "collects garbage for longer than the others",
        "data": "waits for data for longer than the others",
        "dependency": "waits for its own streams for longer than the others",
        "launch_latency": "waits for launches for longer than the others",
        "copies": "waits for copies for longer than the others",
        "other": "is late for no single cause: compare host, data loading and garbage collection",
    }
)
"""What a late rank does; behind its name."""


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank that much of the waiting in the window is for, recurrent or not."""

    rank: int | None
    name: str
    wait_frac: float
    """Of the time that ranks had waited when the last one joined; a pipeline's schedule is left out."""
    lateness_ns: int | None = None
    """As a straggler's."""
    cause: LateCause = "other"
    """As a straggler's, in the dimension in which most is waited for it."""
    cause_ns: int | None = None
    """Its part of the lateness; None where no one cause is known."""
    causes_ns: dict[LateCause, int] = field(default_factory=dict)
    """As a straggler's."""
    compute_is_sure: bool | None = None
    """As a straggler's."""


StragglersState = Literal["found", "none", "not_distinguishable", "not_compared"]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that is last in the collectives of a dimension more often than by chance."""

    rank: int | None
    name: str
    dimension: str
    wait_caused_ns: int
    """Time that the other ranks together had waited in the collectives when this one joined: rank-time. Over
    all ranks it adds up to the waiting that late arrivals cause. Ranks that are last together, within clock
    error, share it."""
    delay_ns: int
    """Wall-clock time between the second last rank and this one, summed: the upper bound of how much earlier
    these collectives could have begun."""
    typical_delay_ns: int
    """Its median over the collectives in which it alone was last; 0 if there are none."""
    recurrence_frac: float
    """Share of the collectives (those with more skew than clock error) in which it was last, alone or within
    clock error together with a minority of the others."""
    chance_frac: float
    """That share if all ranks of its groups were equally likely to be last."""
    chance_probability: float
    """That chance makes any of all ranks come last so often (exact binomial, times the ranks)."""
    collectives: int
    resolution_ns: int
    """Clock error of an arrival: figures in ns may be off by as much for every collective and rank that they
    sum over."""
    lateness_ns: int
    """How much longer the others of its groups waited in exposed collectives of the dimension, in the mean,
    over the steps in which they waited longer than it; 0 where they never did. Needs no clock."""
    extra_compute_ns: int | None
    """How much longer it computed in these steps than the others; None unknown."""
    extra_wait_ns: int | None
    """How much longer its communication of other dimensions was exposed in them; None where there is none."""
    cause: LateCause
    """What it spends longer on than the others, where that is at least half of the lateness: compute, a cause
    of idle time, a later begin of its window (before); waiting for another rank in another dimension, so that
    it only passes the delay on; else other."""
    borne_out: bool | None = None
    """In each quarter of its collectives it is last with at least twice the odds of chance. Else it is of one
    stretch of the capture. None: not looked at."""
    cause_ns: int | None = None
    """Its part of the lateness; None of other."""
    causes_ns: dict[LateCause, int] = field(default_factory=dict)
    """What the rank spent longer on than the others, largest first: parts that sum to the lateness. What it
    spent less on is taken off the smallest; other: no cause is known."""
    compute_is_sure: bool | None = None
    """Whether it computes longer than the others by more than chance (as one in a hundred sound jobs does, if
    data scatter alike and are not sorted). None of TP, CP and PP, and where it is not known."""


def may_be_data(late: LateRank | Straggler) -> bool:
    """Whether uneven data may have made it compute longer: more steps can tell."""
    return late.cause == "compute" and late.compute_is_sure is False


@dataclass(frozen=True, kw_only=True)
class SkewAnalysis:
    """What ranks wait for each other."""

    state: State
    reason: str
    remedy: str
    residual_ns: Residual
    resolution_ns: int | None
    """Clock error: the larger side of the residual, 1 µs at least, or the bounds of clocks without enough
    matched ends, if larger. Skew below it is not measured."""
    clocks: list[RankClock]
    communications: int
    """Communications of all ranks, over the whole captures."""
    matched: int
    """Of them, those with a partner in another rank."""
    matched_by: dict[str, int]
    """By how: `sequence` (number within the group), `order`, `step`, `world_order`."""
    waits: list[RankWait]
    """Most waiting first."""
    largest_spreads: list[Spread]
    """Only those over the resolution."""
    stragglers: list[Straggler]
    """Most waited for first."""
    stragglers_state: StragglersState
    stragglers_reason: str
    """What was compared, and why there is no straggler."""
    compared: int
    """Collectives whose order of arrival was compared."""
    distinguishable: int
    """Those with more skew than clock error."""
    limits: list[str]
    """What these figures do not cover."""
    latest: LateRank | None = None
    """The rank that most of the waiting is for; None where no rank stands out."""
    also_late: list[LateRank] = field(default_factory=list)
    """Others that a tenth of it at least is for, most first."""


StageRole = Literal["embedding", "loss", "middle", "unknown"]
"""Work of a stage besides its layers: the first has the embedding, the last the loss."""


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One rank, summed over its steps; bubble + transfer + handover + late_peer = idle, and
    idle + own = window."""

    rank: int | None
    label: str
    """The device and its capture."""
    stage: int | None
    role: StageRole
    steps: int
    window_ns: int
    idle_ns: int
    bubble_ns: int
    transfer_ns: int
    handover_ns: int
    late_peer_ns: int
    own_ns: int
    """All that is not pipeline idle: passes, the communication and host time inside them."""
    compute_ns: int
    """From the first pass of a step to its last one, as the ledger counts it."""
    own_over_mean: float | None
    """Own time over the mean of its pipeline's stages: 1.1 is 10 % more work; None without those."""
    path_ns: int | None
    """Its part of the critical path."""
    forward_ns: int | None
    """Mean forward pass of one micro-batch through one chunk; None where ranges name no passes."""
    backward_ns: int | None
    phase_source: str
    """How the first and the last pass are known: `ranges` or `messages`."""


BY_NUMBERS = "rank numbers, stages outermost"
"""`PipelineAnalysis.sources["stages"]` where no group said so."""


@dataclass(frozen=True, kw_only=True)
class PipelineAnalysis(Measured):
    """Pipeline idle of the job. Fractions are shares of `window_ns`."""

    scope: Literal["job", "rank"] | None
    """job: stages on one clock, so windows of whole pipelines. rank: each rank alone; then idle time after a
    stage's last message is not seen, transfer counts its own messages only, and a row's late_peer_ns is all
    other waiting."""
    pp: int | None
    vpp: int | None
    micro_batches: int | None
    sources: dict[str, str]
    """Who says so, by field; `stages`: how ranks were given their stages."""
    steps: int
    pipelines: int
    """Measured with all their stages."""
    bubble_frac: float | None
    """The bubble of an ideal schedule of this layout with the mean of the stages' own times."""
    ideal_bubble_frac: float | None
    """Ideal schedule with equal stages: (pp - 1) / (vpp * micro_batches + pp - 1)."""
    transfer_frac: float | None
    handover_frac: float | None
    """Short gaps between compute and messages."""
    late_peer_frac: float | None
    """The rest: some stage or rank was late."""
    window_ns: int | None
    """Windows of all pipelines, steps and stages together: from the first pass of a step to its last one."""
    step_ns: int | None
    """The steps that they lie in, together."""
    idle_ns: int | None
    imbalance_ns: int | None
    """The part of late peer that unequal stages explain; None if passes are unknown."""
    uncertainty_ns: int
    """Clock error of a rank's idle time in a step. 0 on one clock."""
    matched_frac: float | None
    """Share of messages whose peer was found."""
    slowest_rank: int | None
    """The rank whose own time exceeds the mean of its pipeline most, if a rank waited for a late peer."""
    slowest_stage: int | None
    slowest_over_mean: float | None
    stages: list[PipelineStage]
    """By stage, then rank."""
    notes: list[str]
