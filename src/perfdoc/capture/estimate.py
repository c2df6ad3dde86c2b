"""How much room a capture takes, before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.profiling.marks import DeviceKind

BYTES_PER_KERNEL = (700, 1_500)
"""Of report and SQLite export together, by kernel, with its calls and ranges."""
KERNELS_PER_STEP = (3_000, 40_000)
"""Of one rank: a step of a small GPT has 3,655; one of many layers and micro-batches has ten times that."""
KERNELS_PER_SECOND = (2_000, 50_000)
CPU_BYTES_PER_SECOND = (10_000, 5_000_000)
SMALLEST_BYTES = 1_000_000
"""A report and an export of nothing but a second of Python, threads' states among them."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that a capture will take on disk."""

    low_bytes: int
    high_bytes: int


def room(
    *, ranks: int, device: DeviceKind, steps: int | None = None, duration_s: float | None = None
) -> Room | None:
    """By the captured steps of each rank, or else the seconds; None where neither bounds the capture.

    Steps bound none on a CPU: nothing tells nsys of a window without a GPU.
    Worked: 4 steps of 8 GPU ranks, 3,000 kernels of 700 bytes each: 32 x 2.1 MB + 8 x 1 MB = 75.2 MB.
    """
    steps = None if device == "cpu" else steps
    if steps is None and duration_s is None:
        return None
    amount = steps if steps is not None else duration_s or 0.0
    if device == "cpu":
        each = CPU_BYTES_PER_SECOND
    else:
        kernels = KERNELS_PER_STEP if steps is not None else KERNELS_PER_SECOND
        each = (kernels[0] * BYTES_PER_KERNEL[0], kernels[1] * BYTES_PER_KERNEL[1])
    low, high = (round(ranks * (amount * size + SMALLEST_BYTES)) for size in each)
    return Room(low_bytes=low, high_bytes=high)
