"""A pause of a window without steps that nothing shows to come back: a promise about it would be of one
moment, not of the job."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import Activity
from perfdoc.results.capture_parts import Pause

MIN_WINDOW_FRAC = 0.2
MIN_IDLE_FRAC = 0.5
"""Of the idle time: so much of it in one stretch is no habit of the host."""
ALONE = 2
"""Times the next longest: of two that are about as long one comes back."""


def find_pause(activity: Activity, start_ns: int, end_ns: int) -> Pause | None:
    """The one long pause of a device in [start, end); None where idle time comes in more than one piece."""
    gaps = activity.busy.gaps(start_ns, end_ns)
    if not len(gaps):
        return None
    length = gaps.end_ns - gaps.start_ns
    longest = int(length.argmax())
    least = max(MIN_WINDOW_FRAC * (end_ns - start_ns), MIN_IDLE_FRAC * int(length.sum()))
    others = np.delete(length, longest)
    if length[longest] < least or ALONE * others.max(initial=0) > length[longest]:
        return None
    start, end = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    before = int(np.count_nonzero((activity.start_ns >= start_ns) & (activity.start_ns < start)))
    after = int(np.count_nonzero((activity.start_ns >= end) & (activity.start_ns < end_ns)))
    return Pause(start_ns=start, end_ns=end, before=before, after=after)
