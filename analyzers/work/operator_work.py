"""What one call of an operator has to do at least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.work.inputs import Inputs, Tensor
from perfdoc.records import dataclass
from perfdoc.traces.model import Kernels
from perfdoc.traces.table import F64

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


SOURCES = ("shapes", "model", "none")
SHAPES, MODEL, NOTHING = range(3)
"""Indices into SOURCES."""
NONE = -1
_UNKNOWN: Mapping[str, Any] = MappingProxyType(
    {
        "flops": np.float64(np.nan),
        "bytes": np.float64(np.nan),
        "dtype": np.int64(DTYPES.index("unknown")),
        "source": np.int64(NOTHING),
        "operator": np.int64(NONE),
        "call": np.int64(NONE),
    }
)
"""By column of KernelWork."""


@dataclass(frozen=True, kw_only=True)
class OperatorCall:
    """Equal calls of one operator."""

    name: str
    shapes: str
    """As the capture states them, or in the same form from the model's shape."""
    dtype: str
    """Of DTYPES: by the operator's inputs; a kernel of it may use TF32 for FP32."""
    kind: Kind
    flops: int | None
    """Of one call; None unknown."""
    bytes: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelWork:
    """One entry a kernel."""

    flops: F64
    """NaN unknown."""
    bytes: F64
    """HBM traffic at least; NaN unknown."""
    dtype: I64
    """Index into DTYPES."""
    source: I64
    """Index into SOURCES."""
    operator: I64
    """Index into `operators`; -1 none."""
    operators: Sequence[OperatorCall]
    call: I64
    """The call that launched it, which several kernels may share: a row of Trace.operators, or for what the
    model's shape says a number beyond these; -1 none."""
    reason: str = ""
    """Why nothing has a source, where nothing has."""
    notes: tuple[str, ...] = ()
    """What was not looked at, or left out, where something has a source."""

    def without_model(self, reason: str) -> KernelWork:
        """What the capture's shapes say alone."""
        none = KernelWork.unknown(len(self.flops))
        mine = self.source == MODEL
        columns = {
            name: np.where(mine, getattr(none, name), getattr(self, name))
            for name in ("flops", "bytes", "dtype", "source", "operator", "call")
        }
        alone = not (columns["source"] == SHAPES).any()
        return KernelWork(
            **columns,
            operators=self.operators,
            reason=reason if alone else "",
            notes=() if alone else (reason,),
        )

    @property
    def of_none(self) -> bool:
        """Whether it is known of no kernel."""
        return bool((self.source == NOTHING).all())

    @staticmethod
    def unknown(count: int, reason: str = "") -> KernelWork:
        """Of so many kernels nothing is known: columns that take no memory and cannot be written to."""
        columns: dict[str, Any] = {name: np.broadcast_to(v, count) for name, v in _UNKNOWN.items()}
        return KernelWork(**columns, operators=(), reason=reason)

    @staticmethod
    def to_fill(count: int) -> KernelWork:
        """The same, to be filled with what is known."""
        columns: dict[str, Any] = {name: np.full(count, v) for name, v in _UNKNOWN.items()}
        return KernelWork(**columns, operators=())


def share_calls(
    rows: I64,
    table: Kernels,
    *,
    kernels: I64,
    call: I64,
    operator: I64,
    operators: Sequence[OperatorCall],
    dtype: I64,
    source: int,
) -> KernelWork:
    """The work of `rows` (of Trace.kernels), of which `kernels` ran in calls.

    The kernels of a call share its work by their durations, so that the sum over a call is exact.
    operator: of each of `kernels`, index into `operators`.
    """
    # An instant kernel still counts: its call has to have its work somewhere.
    duration = np.maximum(table.end_ns[kernels] - table.start_ns[kernels], 1).astype(np.float64)
    share = duration / np.bincount(call, weights=duration)[call]
    at = np.full(len(table), NONE, np.int64)
    at[kernels] = np.arange(len(kernels))
    known = np.flatnonzero(at[rows] >= 0)
    mine = at[rows[known]]
    flops = np.array([np.nan if o.flops is None else float(o.flops) for o in operators])
    moved = np.array([np.nan if o.bytes is None else float(o.bytes) for o in operators])
    used, position = np.unique(operator[mine], return_inverse=True)
    work = KernelWork.to_fill(len(rows))
    work.flops[known] = flops[operator[mine]] * share[mine]
    work.bytes[known] = moved[operator[mine]] * share[mine]
    work.dtype[known] = dtype[mine]
    work.source[known] = source
    work.operator[known] = position
    work.call[known] = call[mine]
    return replace(work, operators=tuple(operators[i] for i in used.tolist()))
