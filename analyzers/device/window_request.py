"""What the user asked to look at."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WindowRequest:
    """At most one of these is set; none of them: the steps, else the whole capture."""

    bounds_ns: tuple[int, int] | None = None
    range_pattern: re.Pattern[str] | None = None
    """From the first to the last matching range of the rank's process, clipped to the ranges' host times."""
    step_pattern: re.Pattern[str] | None = None
    """Names of step ranges, in place of the known forms."""
    whole_capture: bool = False
