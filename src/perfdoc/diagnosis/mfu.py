"""Model FLOPs utilisation."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Model FLOPs utilisation; value is None with the reason where it cannot be computed."""

    value: float | None
    """Model FLOPs of a step / (step time x GPUs x dense peak), as a fraction; recompute is not counted."""
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
    """Dense peak of one GPU in the training dtype, FLOP/s."""
    peak_source: str
    dtype: str | None
    convention: str | None
    """How the FLOPs are counted."""
    waterfall: list[WaterfallBar]
    """From `ideal` down to the last leaf; sums to the windows exactly. Empty where MFU is unknown."""
