"""A device's window in rough strokes: when it computed and why it idled, few enough to keep for every rank.

What is drawn of the other ranks around an instance comes from it, and from their communication and passes,
which are kept anyway: their traces are closed by the time it is known which moment matters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.idle import Gaps
from perfdoc.analyzers.steps.step_ledgers import LEAVES
from perfdoc.analyzers.timeline.paint import Layer, paint
from perfdoc.analyzers.timeline.tracks import idle_layers

MOST_STRETCHES = 2_000
"""Of compute."""
_STROKES_NS = (0, 2_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 25_000_000, 10**9, 10**12)
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Outline:
    """Stretches by start, on the capture's clock."""

    start_ns: I64
    end_ns: I64
    code: I64
    """Index into LEAVES: compute, or an idle cause; communication and copies are left out."""
    closed_ns: int
    """Gaps in compute up to this are drawn as compute."""


NO_OUTLINE = Outline(start_ns=_EMPTY, end_ns=_EMPTY, code=_EMPTY, closed_ns=0)


def outline(view: DeviceView) -> Outline:
    """The outline of a device that communicates; empty of another, which nobody waits for."""
    window = view.window
    if window.duration_ns <= 0 or not len(view.activity.communication.start_ns):
        return NO_OUTLINE
    compute = view.activity.compute.clip(window.start_ns, window.end_ns)
    apart = compute.start_ns[1:] - compute.end_ns[:-1]
    closed = next(ns for ns in _STROKES_NS if np.count_nonzero(apart > ns) < MOST_STRETCHES or ns == 10**12)
    breaks = np.flatnonzero(apart > closed)
    some = len(compute) > 0
    drawn = Layer(
        start_ns=compute.start_ns[np.append(0, breaks + 1)] if some else _EMPTY,
        end_ns=compute.end_ns[np.append(breaks, len(compute) - 1)] if some else _EMPTY,
        code=np.full((len(breaks) + 1) if some else 0, LEAVES.index("compute"), np.int64),
    )
    gaps = view.gaps
    if closed:
        kept = gaps.end_ns - gaps.start_ns > closed
        gaps = replace(gaps, **{name: getattr(gaps, name)[kept] for name in Gaps.__dataclass_fields__})
    found = paint([*idle_layers(gaps, view.idle_inputs), drawn], window.start_ns, window.end_ns)
    known = found.code >= 0
    return Outline(
        start_ns=found.start_ns[known],
        end_ns=found.end_ns[known],
        code=found.code[known],
        closed_ns=closed,
    )
