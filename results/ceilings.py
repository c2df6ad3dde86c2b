"""What a device can reach: FLOP/s by dtype and bytes a second, and where each figure comes from."""

from __future__ import annotations

from typing import Literal

from perfdoc.records import dataclass

CeilingSource = Literal["datasheet", "measured", "given"]


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One rate that kernels of a device cannot exceed, or were not seen to."""

    value: float
    """FLOP/s or bytes/s."""
    source: CeilingSource
    """given: by the user, with --set or --config."""
    text: str
    """`dense bf16 peak of NVIDIA H100 80GB HBM3`, `best of 12 GEMMs of 4096 x 4096 x 4096 here`."""
    spread_frac: float | None = None
    """Of a measured one: how far the median of the repeats lies below the best, as a share of it."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """All that is known of one device of a job."""

    device: str
    """Its name; empty where that is not known."""
    flops: dict[str, Ceiling]
    """By what is multiplied: fp64, fp32 (on CUDA cores), tf32, bf16, fp16, fp8."""
    memory: Ceiling | None
    """Bytes a second from and to the device's memory (of a CPU rank: its share of the machine's)."""
    sm_count: int | None
    """Of the chip as sold; what a capture says of its own device goes before it."""
    reason: str
    """Why something is missing; empty where nothing is."""
