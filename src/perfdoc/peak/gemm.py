"""GEMM rates by dtype: the best of a sweep of shapes, as a model's own shapes reach it or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from perfdoc.peak.team import Team, Timed, Work

Shape = tuple[int, int, int]
"""M x N x K: (M x K) times (K x N)."""

SHAPES: dict[str, Sequence[Shape]] = {
    # The largest GEMMs that a CPU does within a second come last; slow dtypes stop before.
    "cpu": ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 1024, 1024), (2048, 2048, 2048)),
    # Squares, and the long sides of a layer: a last wave of tiles that is not full weighs less there.
    "cuda": (
        *((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
        *((4096, 14336, 4096), (8192, 4096, 14336), (8192, 28672, 8192), (16384, 8192, 1280)),
    ),
}
DTYPES: dict[str, Sequence[str]] = {
    "cpu": ("fp32", "bf16", "fp16", "fp64"),
    "cuda": ("bf16", "fp16", "tf32", "fp32", "fp8", "fp64"),
}
LONGEST_S = 0.1
"""No GEMM of a sweep is to last longer."""
_LOOK_S, _LOOKS = 0.03, 2
_FINAL, _ROUND_S, ROUNDS = 2, 0.05, 8
"""Of the best two shapes: long enough for the clock, short enough to fall between two disturbances."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best shape of one dtype."""

    shape: Shape
    timed: Timed


def measure_gemms(team: Team, dtype: str) -> Best | str:
    """The best rate of one dtype, FLOP/s of a rank; why there is none as text.

    A GEMM of M x N x K is 2·M·N·K operations.
    """
    with _mode(dtype):
        looks: list[tuple[float, Shape]] = []
        for shape in SHAPES[team.kind]:
            operations = 2.0 * shape[0] * shape[1] * shape[2]
            if looks and operations / max(looks)[0] > LONGEST_S:
                continue
            work = _tried(team, dtype, shape)
            if isinstance(work, str):
                if not looks:
                    return work
                continue  # too large for the memory that is left
            look = team.timed(work, operations, round_s=_LOOK_S, rounds=_LOOKS)
            looks.append((look.rate, shape))
        return max((_rated(team, dtype, shape) for _, shape in sorted(looks)[-_FINAL:]), key=_rate)


def _rated(team: Team, dtype: str, shape: Shape) -> Best:
    work, operations = gemm(team, dtype, shape), 2.0 * shape[0] * shape[1] * shape[2]
    return Best(shape=shape, timed=team.timed(work, operations, round_s=_ROUND_S, rounds=ROUNDS))


def _rate(best: Best) -> float:
    return best.timed.rate


def _tried(team: Team, dtype: str, shape: Shape) -> Work | str:
    """A GEMM that runs on every rank, or why it does not."""
    made: list[Work] = []
    reason = team.can(lambda: made.append(gemm(team, dtype, shape))) or team.can(made[0])
    return reason or made[0]


def gemm(team: Team, dtype: str, shape: Shape) -> Work:
    """One GEMM of random operands, the second transposed, as a linear layer's is."""
    m, n, k = shape
    generator = torch.Generator(device=team.device).manual_seed(1)
    real = torch.float32 if dtype in ("fp32", "tf32", "fp8") else _TORCH[dtype]
    a = torch.randn(m, k, device=team.device, dtype=torch.float32, generator=generator).to(real)
    b = torch.randn(n, k, device=team.device, dtype=torch.float32, generator=generator).to(real)
    if dtype == "fp8":
        eight, one = torch.float8_e4m3fn, torch.ones((), device=team.device)
        x, y = a.to(eight), b.to(eight).t()
        return lambda: torch._scaled_mm(
            x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    out = torch.empty(m, n, device=team.device, dtype=real)
    return lambda: torch.mm(a, b.t(), out=out)


_TORCH: dict[str, Any] = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def _mode(dtype: str) -> Iterator[None]:
    """fp32 on CUDA cores, tf32 on tensor cores."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before
