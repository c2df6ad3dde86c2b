"""FLOPs and bytes of every kernel of a device, and who says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.work.operator_work import DTYPES, Kind
from perfdoc.traces.table import F64

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
