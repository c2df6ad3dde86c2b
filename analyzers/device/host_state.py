"""Whether what rests on CUDA calls can be measured of a device, and if not, why."""

from __future__ import annotations

from perfdoc.analyzers.device.view import DeviceView

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
