"""Model FLOPs utilisation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOPs utilisation; value is None with the reason where it cannot be computed."""

    value: float | None
    reason: str
    flops_per_step: float | None
    step_time_ns: int | None
    gpus: int | None
    peak_flops: float | None
    convention: str | None
