"""What ranks wait for each other: in collectives, for stragglers, and for the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfdoc.results.quality import State


@dataclass(frozen=True, kw_only=True)
class Residual:
    """By what ends of one collective still differ when the clocks are aligned, in ns; None: not measured."""

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
    """Ranks of one component were compared with each other; of different ones nothing is said."""
    source: Literal["one_clock", "ends", "bounds", "utc", "none"]
    """one_clock: in one capture with the reference. ends: aligned through matched ends. bounds: those are too
    few, so it was placed within what is left by what cannot have come before what (`resolution_ns`). utc: the
    captures' UTC epochs as they are, which the ends agree with. none: nothing to compare with."""
    offset_ns: int | None
    """How far the clock was ahead of the reference's; None where a UTC epoch is missing."""
    drift_ppm: float | None
    """How much faster it runs, millionths; None where the matches do not cover enough time."""
    resolution_ns: int | None
    """Differences to the reference up to this are not told from none; None where nothing was compared."""
    bound_ns: int | None
    """An offset could not be wrong by more: a rank would have left a collective before another came."""


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
    """Shortest duration of each collective over its ranks. An upper bound where a rank of the group is not
    here: if that one is late, all others wait."""
    wait_ns: int
    """own - transfer."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One collective to which its ranks came far apart."""

    dimension: str
    operation: str
    group: str
    ranks: int
    start_spread_ns: int
    end_spread_ns: int
    transfer_ns: int | None
    """None where its completion is not known exactly."""
    first_rank: int | None
    first_name: str
    last_rank: int | None
    last_name: str
    step: int | None


LateCause = Literal["compute", "waiting", "other"]
StragglersState = Literal["found", "none", "not_distinguishable", "not_compared"]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A rank that comes last to the collectives of a dimension more often than chance has it."""

    rank: int | None
    name: str
    dimension: str
    wait_caused_ns: int
    """Time that the other ranks together had already been in the collectives when this one came: rank-time.
    Over all ranks it adds up to the waiting that late arrivals cause. Where several came last within the
    resolution, they share it."""
    delay_ns: int
    """Wall-clock time by which it came later than everybody else, summed: so much earlier these collectives
    could have begun, and no more, had it come with the second last."""
    typical_delay_ns: int
    """Median of that over the collectives to which it came last alone; 0 where it never did."""
    recurrence_frac: float
    """Share of the collectives (those whose arrivals can be told apart) to which it came last, alone or
    within the resolution together with a minority of the others."""
    chance_frac: float
    """That share if all ranks of its groups were equally likely to come last."""
    chance_probability: float
    """At most this probable by chance, for any of all ranks (Chernoff)."""
    steps_frac: float | None
    """Share of the steps in which it caused the most waiting in its groups; None without numbered steps."""
    collectives: int
    resolution_ns: int
    """By so much their arrivals had to lie apart to be told: figures in ns may be off by as much for every
    collective and rank that they sum over."""
    lateness_ns: int
    """Median lateness against the mean of the others, times the number of collectives, so that one long stop
    does not stand for a habit."""
    extra_compute_ns: int | None
    """How much longer it computed meanwhile than the others of its groups (median)."""
    extra_wait_ns: int | None
    """How much longer it waited in other dimensions than the others of its groups (median)."""
    cause: LateCause
    """What makes up at least half of the lateness: longer computing; waiting for somebody else in another
    dimension, so that it only passes the delay on; neither (idle: host, data, garbage collection)."""


@dataclass(frozen=True, kw_only=True)
class SkewAnalysis:
    """What ranks wait for each other."""

    state: State
    reason: str
    remedy: str
    residual_ns: Residual
    resolution_ns: int | None
    """Differences up to it are not told from none: the larger side of the residual, 1 µs at least, or what is
    left open of clocks that ends do not tie, if that is more."""
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
    """What was compared, and why there are none where that is so."""
    compared: int
    """Collectives of which the order of arrival was looked at."""
    distinguishable: int
    """Of them, those whose ranks came further apart than the resolution."""
    limits: list[str]
    """What these figures do not cover."""


StageRole = Literal["embedding", "loss", "middle", "unknown"]
"""What a stage has to do besides its layers: the first one embeds, the last one computes the loss."""


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
    """Own time over the mean of its pipeline's stages: 1.1 has a tenth more to do; None without those."""
    path_ns: int | None
    """Its part of the critical path."""
    forward_ns: int | None
    """Mean forward pass of one micro-batch through one chunk; None where ranges name no passes."""
    backward_ns: int | None
    phase_source: str
    """How the first and the last pass are known: `ranges` or `messages`."""


@dataclass(frozen=True, kw_only=True)
class PipelineAnalysis:
    """Pipeline idle of the job. Fractions are shares of `window_ns`."""

    state: State
    reason: str
    """Why it, or a part of it that is null, is not measured."""
    remedy: str
    scope: Literal["job", "rank"] | None
    """job: stages on one clock, so windows of whole pipelines. rank: every rank by itself; then what a stage
    idles after its last message is not seen, transfer counts its own messages only, and a row's late_peer_ns
    is whatever it waited besides."""
    pp: int | None
    vpp: int | None
    micro_batches: int | None
    sources: dict[str, str]
    """Who says so, by field; `stages`: how ranks were given their stages."""
    steps: int
    pipelines: int
    """Measured with all their stages."""
    bubble_frac: float | None
    """What a perfect schedule of this layout must leave idle, with the mean of the stages' own times."""
    ideal_bubble_frac: float | None
    """Of a perfect schedule with equal stages: (pp - 1) / (vpp * micro_batches + pp - 1)."""
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
    """The part of late peer that the stages' mean times account for; None where passes are not known."""
    uncertainty_ns: int
    """By how much clocks may make the idle time of a rank in a step wrong. 0 on one clock."""
    matched_frac: float | None
    """Share of messages of which the other side was found."""
    slowest_rank: int | None
    """Whose own time exceeds the mean of its pipeline most, where somebody waited for a late peer."""
    slowest_stage: int | None
    slowest_over_mean: float | None
    stages: list[PipelineStage]
    """By stage, then rank."""
    notes: list[str]
