"""Whether a capture holds all that ran: calls that launch work against the work, and the other way round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EventCounts:
    """Of the process of one device. Calls and kernels near the ends of the capture, whose other half may lie
    outside of it, are not counted."""

    launches: int
    """Kernel launch calls; what was recorded into a CUDA graph is not among them."""
    launches_without_work: int
    copy_calls: int
    copy_calls_without_work: int
    kernels: int
    kernels_without_launch: int
    work_missing: str
    """Why time in which nothing ran is not known to be idle: kernels or copies are missing from the file.
    Empty where none are known to be."""
    launches_missing: str
    """Why causes of idle time are not known and nothing is predicted. Empty where launches are there."""

    @property
    def partial(self) -> str:
        """Why no gain is predicted; empty where the file is known to lack nothing."""
        return self.work_missing or self.launches_missing


NO_EVENTS = EventCounts(
    launches=0,
    launches_without_work=0,
    copy_calls=0,
    copy_calls_without_work=0,
    kernels=0,
    kernels_without_launch=0,
    work_missing="",
    launches_missing="",
)
"""Nothing to compare, as on a rank that trains on the CPU, or in a diagnosis of an earlier version."""
