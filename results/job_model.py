"""The model of the whole job: its stages, where each comes from, and how well the unedited step comes out."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import State

Origin = Literal["captured", "folded", "composed"]


@dataclass(frozen=True, kw_only=True)
class ModelledStage:
    """One pipeline stage; times of one micro-batch over all chunks of the stage."""

    stage: int
    layers: int | None
    origin: Origin
    """captured: measured on one rank. folded: mean of several ranks that work alike. composed: of no rank;
    its layers are those of other stages, its output layer follows from its FLOPs or from others' waits."""
    ranks: list[int]
    forward_ns: int
    backward_ns: int
    spread_frac: float
    """Longest over shortest of its ranks, less 1."""


@dataclass(frozen=True, kw_only=True)
class JobModelAnalysis:
    """The whole job from the ranks at hand."""

    state: State
    reason: str
    remedy: str
    step_ns: int | None = None
    """The mean measured step."""
    modelled_ns: int | None = None
    """The unedited step by the model."""
    error_frac: float | None = None
    """modelled / measured - 1; near 0 by construction where the last stage was not captured."""
    message_ns: int | None = None
    """A message between stages once both sides are there; None without a pipeline."""
    output_over_flops: float | None = None
    """Where the last stage was not captured: its output layer, as the waits of a captured stage show it,
    over what its FLOPs take at the rate of the GEMMs seen."""
    stages: list[ModelledStage] = field(default_factory=list)
    world_size: int | None = None
    notes: list[str] = field(default_factory=list)


NO_JOB_MODEL = JobModelAnalysis(
    state="not_measured",
    reason="the job was not modelled",
    remedy="Analyse the captures again, without --no-replay.",
)
