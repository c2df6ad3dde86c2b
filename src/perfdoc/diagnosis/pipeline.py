"""Idle time of pipeline parallelism, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfdoc.diagnosis.state import State


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One rank, summed over its steps; bubble + transfer + handover + late_peer = idle, and
    idle + own = window."""

    rank: int | None
    label: str
    """The device and its capture."""
    stage: int | None
    role: Literal["embedding", "loss", "middle", "unknown"]
    """What the stage has to do besides its layers."""
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
    """Own time over the mean of its pipeline's stages: 1.1 has a tenth more to do."""
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
    """(pp - 1) / (vpp * micro_batches + pp - 1)."""
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
    """The part of late peer that the stages' mean times account for."""
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
