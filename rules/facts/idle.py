"""From which share of the window on idle time behind a cause on the host is a finding."""

from __future__ import annotations

MIN_HOST_FRAC = 0.05
"""Behind launches: of the window, mean over ranks; or what the replay says that the step would save, waits of
other ranks included."""
MIN_GC_FRAC = 0.01
"""Behind garbage collection: the same."""
