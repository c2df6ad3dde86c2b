"""What one call of an operator has to do at least."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from perfdoc.analyzers.work.inputs import Inputs, Tensor

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "unknown")
"""Arithmetic."""

Kind: TypeAlias = Literal[
    "gemm",
    "grouped_gemm",
    "attention",
    "convolution",
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "loss",
    "embedding",
    "optimizer",
    "copy",
]


@dataclass(frozen=True, kw_only=True)
class OperatorWork:
    """Of one call. None is unknown."""

    flops: int | None
    """Operations that the hardware executes: a multiply-add is two, a transcendental function is one."""
    bytes: int | None
    """HBM traffic at least: every input read once, every output written once."""
    dtype: str
    """Of DTYPES: the arithmetic's."""
    kind: Kind


Formula: TypeAlias = Callable[[Inputs], OperatorWork | None]
"""None where the inputs do not determine the work."""


def total_bytes(parts: Iterable[int | None]) -> int | None:
    """Their sum; None where one is unknown."""
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def bytes_of(*tensors: Tensor | None) -> int | None:
    """Bytes of those that are there, each once; None where one's element type is unknown."""
    return total_bytes(t.bytes for t in tensors if t is not None)


def sized(elements: int, width: int | None) -> int | None:
    """Bytes of so many elements."""
    return None if width is None else elements * width


def vector_dtype(dtype: str) -> str:
    """The arithmetic of kernels that use no tensor cores: PyTorch computes 16-bit types in fp32."""
    return dtype if dtype in ("fp64", "unknown") else "fp32" if dtype != "int8" else "unknown"
