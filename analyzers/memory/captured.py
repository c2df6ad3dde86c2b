"""GPU memory from a capture that recorded allocations: PyTorch's profile_memory, nsys --cuda-memory-usage."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.results.memory import DeviceMemory, MemorySeries
from perfdoc.traces.table import I64


def captured_memory(view: DeviceView) -> DeviceMemory | None:
    """What the device's process had of it in the window; None where no allocation in it was recorded.

    What it is made of is not known: neither reader has the stacks of allocations.
    """
    trace, window, steps = view.trace, view.window, view.step_ranges
    use = trace.memory_use.take(np.flatnonzero(trace.memory_use.device == view.activity.device))
    # On the host a window of steps is where their ranges lie.
    start, end = window.start_ns, window.end_ns
    if len(steps.start_ns):
        start, end = int(steps.start_ns[0]), int(steps.end_ns[-1])
    first, last = np.searchsorted(use.time_ns, (start, end), "right").tolist()
    if first == last:
        return None
    from perfdoc.analyzers.memory.composition import MAX_MOMENTS
    from perfdoc.analyzers.memory.places import growth_of

    use = use.take(slice(max(first - 1, 0), last))
    allocated, reserved = use.allocated_bytes, use.reserved_bytes
    peak = int(allocated.argmax())
    is_reserved_known = bool((reserved >= 0).all())
    total = view.device.memory_bytes if is_reserved_known and not trace.memory_lacks else None
    at = np.unique(np.append(np.linspace(0, len(use) - 1, MAX_MOMENTS - 1).astype(int), peak))
    ends = steps.end_ns[(steps.end_ns >= use.time_ns[0])]
    utc = None if trace.utc_origin_ns is None else use.time_ns + trace.utc_origin_ns
    return DeviceMemory(
        path="",
        rank=None,
        device=view.device.ordinal,
        state="measured",
        reason=trace.memory_lacks,
        events=last - first,
        start_time_ns=_at(utc, 0),
        end_time_ns=_at(utc, -1),
        start_allocated_bytes=int(allocated[0]),
        peak_allocated_bytes=int(allocated[peak]),
        peak_above_start_bytes=int(allocated[peak] - allocated[0]),
        end_allocated_bytes=int(allocated[-1]),
        peak_time_ns=_at(utc, peak),
        peak_reserved_bytes=int(reserved.max()) if is_reserved_known else None,
        end_reserved_bytes=int(reserved[-1]) if is_reserved_known else None,
        headroom_bytes=None if total is None else total - int(reserved.max()),
        growth=growth_of(allocated[np.searchsorted(use.time_ns, ends, "right") - 1], "steps"),
        series=MemorySeries(
            event=at.tolist(),
            time_ns=(use.time_ns[at] - use.time_ns[0]).tolist(),
            category_bytes={"unknown": allocated[at].tolist()},
            reserved_bytes=reserved[at].tolist() if is_reserved_known else [],
            peak=int(np.searchsorted(at, peak)),
        ),
    )


def _at(utc_ns: I64 | None, row: int) -> int | None:
    return None if utc_ns is None else int(utc_ns[row])
