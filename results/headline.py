"""The job and its headline figures: tokens per second, MFU, and both against an earlier measurement."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.ceilings import CeilingSource
from perfdoc.results.degrees import Degree
from perfdoc.results.quality import Contradiction

Framework = Literal["megatron", "pytorch", "vllm", "jax", ""]
"""Whose program runs; empty where nothing tells."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Sizes of parallel groups are counts of ranks; None is unknown."""

    model: str | None
    world_size: int | None
    tp: int | None
    cp: int | None
    pp: int | None
    dp: int | None
    """Replicas of the model."""
    vpp: int | None
    """Model chunks per pipeline stage; 1 without interleaving."""
    ep: int | None
    etp: int | None
    sequence_parallel: bool | None
    micro_batches: int | None
    """Micro-batches of a step on each pipeline."""
    micro_batch_sequences: int | None
    global_batch_sequences: int | None
    sequence_length: int | None
    """Tokens of one sequence."""
    dtype: str | None
    """Of the GEMMs."""
    recompute: str | None
    dialect: str | None
    """In whose spelling the job's settings are written; None where that is not known."""
    sources: dict[str, str]
    """Who said so, by field."""
    tokens_per_step: int | None
    """Over all ranks; padding counts."""
    tokens_per_s_per_gpu: float | None
    """By Mfu.step_time_ns and Mfu.gpus."""
    tokens_reason: str
    """Why there is no such figure; empty otherwise."""
    tokens_remedy: str
    contradictions: list[Contradiction] = field(default_factory=list)
    """Given facts that the captures show otherwise: they count as unknown above and for all advice."""
    degrees: list[Degree] = field(default_factory=list)
    """The job's ranks and its degrees of parallelism, with what shows each."""
    framework: Framework = ""
    """By the settings given, else by names in the captures: in whose words changes are named."""


@dataclass(frozen=True, kw_only=True)
class WaterfallBar:
    """A share of the ranks' time between 100 % and the MFU."""

    name: str
    """`ideal` (what MFU is), `compute_beyond_ideal`, or a ledger leaf such as `exposed_comm.dp`."""
    total_ns: int
    """Summed over ranks and steps."""
    frac: float
    """Of the ranks' windows together."""


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOPs utilization; value is None with the reason where it cannot be computed."""

    value: float | None
    """Model FLOPs of a step / (step time x GPUs x peak), as a fraction; recompute is not counted."""
    reason: str
    remedy: str
    flops_per_step: int | None
    """Over all ranks of the job."""
    flops_source: str
    step_time_ns: int | None
    """Mean over the steps of all ranks that the captures show."""
    gpus: int | None
    """Of the whole job, which the captures may show only in part."""
    gpus_source: str
    peak_flops: float | None
    """Peak of one device in the training dtype, FLOP/s."""
    peak_source: str
    dtype: str | None
    convention: str | None
    """How the FLOPs are counted."""
    waterfall: list[WaterfallBar]
    """From `ideal` down to the last leaf; sums to the windows exactly. Empty where MFU is unknown."""
    peak_kind: CeilingSource | None = None
    """Whose peak it is a share of: the data sheet's dense one, one measured on the device, or a given one."""
