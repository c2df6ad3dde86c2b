"""What every part of the host analysis starts with: whether it was measured, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from perfdoc.analyzers.device.view import DeviceView

State: TypeAlias = Literal["measured", "not_measured"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The base of a result. Where it was not measured, its figures are None (or empty)."""

    state: State = "measured"
    reason: str = ""
    """Why not; of a measured one, what limits it."""
    remedy: str = ""
    """How to capture what is missing."""

    @classmethod
    def missing(cls, reason: str, remedy: str = "") -> Self:
        """A result that was not measured."""
        return cls(state="not_measured", reason=reason, remedy=remedy)


MAX_LAUNCHING_THREADS = 1_000
"""A program has a few for each device; a damaged or hostile trace may have one for each kernel."""
NO_LAUNCHES = "No activity of this device shares a correlation id with a CUDA call."
ON_HOST = "The rank computes on the CPU: no work is launched to a device."


def launches_missing(view: DeviceView) -> tuple[str, str] | None:
    """Why what rests on CUDA calls cannot be measured on a device, and the remedy; None where it can."""
    if view.activity.on_host:
        return ON_HOST, ""
    for name in ("api_calls", "launch_correlation"):
        capability = view.trace.capabilities[name]
        if not capability.available:
            return capability.reason, capability.remedy
    if not (view.activity.launch_start_ns >= 0).any():
        return NO_LAUNCHES, view.trace.capabilities["launch_correlation"].remedy
    if (count := len(view.activity.launching_threads)) > MAX_LAUNCHING_THREADS:
        return f"{count:,} threads launch this device's work: such a capture is damaged.", "Capture again."
    return None
