"""The kernels of a device's window, each with its class, its part of the model and its phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.attribution import Attribution, attribute, said_of_launches
from perfdoc.analyzers.kernels.spans import Lane, SpanContext, find_lanes
from perfdoc.traces.table import Bool


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributedKernels:
    """Kernels that run inside the window, by start; one entry each."""

    rows: I64
    """Of Trace.kernels."""
    duration_ns: I64
    """Clipped to the window."""
    classes: I64
    """KernelClass."""
    lanes: Mapping[int, Lane]
    context: SpanContext
    found: Attribution

    @cached_property
    def is_comm(self) -> Bool:
        """Which of them are communication."""
        found: Bool = self.classes == KernelClass.COMMUNICATION
        return found


def attributed_kernels(view: DeviceView, lanes: Mapping[int, Lane] | None = None) -> AttributedKernels | None:
    """None where no kernel runs inside the window, or the rank trains on the CPU.

    lanes: as find_lanes has them, where another window of the device has found them.
    """
    if view.activity.on_host:
        return None
    rows, duration = _inside(view)
    if not len(rows):
        return None
    lanes = find_lanes(view) if lanes is None else lanes
    context = said_of_launches(view, lanes, rows)
    classes = np.array([k.kernel_class for k in view.kinds.kinds], np.int64)[view.kinds.kind[rows]]
    return AttributedKernels(
        rows=rows,
        duration_ns=duration,
        classes=classes,
        lanes=lanes,
        context=context,
        found=attribute(view, context, rows, classes),
    )


def _inside(view: DeviceView) -> tuple[I64, I64]:
    """Kernels that run inside the window, by start, and their durations clipped to it."""
    kernels, window = view.trace.kernels, view.window
    rows = view.activity.kernel_rows
    start, end = kernels.start_ns[rows], kernels.end_ns[rows]
    inside = (start < window.end_ns) & (end > window.start_ns)
    rows, start, end = kept(inside, rows, start, end)
    duration = np.minimum(end, window.end_ns) - np.maximum(start, window.start_ns)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, duration = rows[order], duration[order]
    return rows, duration
