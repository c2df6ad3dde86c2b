"""The worst instances of one device, each with what ran around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.contention.contention_result import Contention
from perfdoc.analyzers.device.device_view import DeviceView
from perfdoc.analyzers.device.window import Step
from perfdoc.analyzers.instances.excerpt import Excerpts
from perfdoc.analyzers.instances.instance import Instance, padded
from perfdoc.analyzers.instances.spots import find_spots
from perfdoc.analyzers.ledger.ledger import Ledger

MAX_INSTANCES = 16
"""Of one device."""


def device_instances(view: DeviceView, ledger: Ledger, contention: Contention) -> tuple[Instance, ...]:
    """One instance of each kind that the device has, costliest first."""
    if view.window.duration_ns <= 0:
        return ()
    spots = [*find_spots(view, ledger), *contention.worst]
    spots.sort(key=lambda s: (-s.cost_ns, s.key))
    excerpts = Excerpts(view)
    return tuple(_instance(view, excerpts, spot) for spot in spots[:MAX_INSTANCES])


def _instance(view: DeviceView, excerpts: Excerpts, spot: Spot) -> Instance:
    low, high = view.activity.span
    first, last = padded(spot.start_ns, spot.end_ns)
    # Beyond the capture there is nothing to see; beyond the window there may be.
    first = max(first, min(low, view.window.start_ns, spot.start_ns))
    last = min(last, max(high, view.window.end_ns, spot.end_ns))
    return Instance(
        spot=spot,
        step=step_of(view.window.steps, spot.start_ns),
        first_ns=first,
        last_ns=last,
        tracks=excerpts.cut(first, last),
    )


def step_of(steps: Sequence[Step], time_ns: int) -> str:
    """Name of the step that holds a time of the device; empty where none does."""
    at = int(np.searchsorted([s.start_ns for s in steps], time_ns, "right")) - 1
    return steps[at].name if at >= 0 and time_ns < steps[at].end_ns else ""
