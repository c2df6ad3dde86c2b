"""What is known of the job beside its captures, and how many tokens it trains on per second."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Of the matrix products."""
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
