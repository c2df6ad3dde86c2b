"""The operators of one device by lost time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.efficiency.roofline import Roofline
from perfdoc.analyzers.efficiency.tables import NS_PER_S, operators_together, same_operator
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.analyzers.work.operator_work import DTYPES
from perfdoc.analyzers.work.result import MODEL, SOURCES, KernelWork
from perfdoc.results.efficiency import OperatorEfficiency


@dataclass(frozen=True, kw_only=True, eq=False)
class Operators:
    """Those of one device."""

    rows: list[OperatorEfficiency]
    """By falling lost time."""
    kernel: I64
    """Kernels that are of one of them."""
    row: I64
    """Of these kernels, the index into `rows`."""


def operators_of(work: KernelWork, roofline: Roofline, inside_ns: I64, whole_ns: I64) -> Operators:
    """By operator, shape and dtype. inside_ns: durations clipped to the window."""
    mine = np.flatnonzero((work.operator >= 0) & ~roofline.too_fast)
    if not len(mine):
        return Operators(rows=[], kernel=mine, row=mine)
    # One operator may run kernels of several dtypes and sources.
    code = (work.operator[mine] * len(DTYPES) + work.dtype[mine]) * len(SOURCES) + work.source[mine]
    count = np.bincount(code)
    keys, at = np.flatnonzero(count), (np.cumsum(count > 0) - 1)[code]
    share = inside_ns[mine] / np.maximum(whole_ns[mine], 1)
    time = sum_by(at, inside_ns[mine], len(keys))
    first, _ = row_keys(at, work.call[mine])
    calls = np.bincount(at[first], minlength=len(keys))

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(at, weights=np.nan_to_num(values[mine]) * share, minlength=len(keys))

    flops, moved, needs, best = (
        total(v) for v in (work.flops, work.bytes, roofline.needs_ns, roofline.best_ns)
    )
    by_flops, by_bytes = total(roofline.flops_ns), total(roofline.bytes_ns)
    known = np.bincount(at, weights=~np.isnan(roofline.flops_ns[mine]), minlength=len(keys)) > 0
    rows = []
    for i, key in enumerate(keys.tolist()):
        operator, rest = divmod(key, len(DTYPES) * len(SOURCES))
        dtype, source = divmod(rest, len(SOURCES))
        call, ns = work.operators[operator], int(time[i])
        seconds = ns / NS_PER_S
        rows.append(
            OperatorEfficiency(
                name=call.name,
                kernel_class=call.kind,
                shapes=call.shapes,
                dtype=DTYPES[dtype],
                source="model" if source == MODEL else "shapes",
                calls=int(calls[i]),
                time_ns=ns,
                flops=None if call.flops is None else float(call.flops),
                bytes=None if call.bytes is None else float(call.bytes),
                achieved_tflops=float(flops[i]) / seconds / 1e12 if call.flops and ns else None,
                achieved_tbps=float(moved[i]) / seconds / 1e12 if call.bytes and ns else None,
                roofline_frac=float(needs[i]) / ns if known[i] and ns else None,
                bound="" if not known[i] else "compute" if by_flops[i] > by_bytes[i] else "memory",
                lost_ns=max(ns - round(float(best[i])), 0) if known[i] else 0,
            )
        )
    found = operators_together(rows)
    place = {same_operator(o): i for i, o in enumerate(found)}
    return Operators(rows=found, kernel=mine, row=np.array([place[same_operator(o)] for o in rows])[at])
