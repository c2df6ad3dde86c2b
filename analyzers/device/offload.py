"""Pauses in which the host may work on what steps sent it: an optimizer on the CPU."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, Intervals
from perfdoc.traces import CopyKind, Trace

SENT_BYTES = 16 << 20
"""Copied to the host, from which on it may work on them there: losses and metrics are far smaller."""
LEAST_BYTES = 1 << 20
"""Of a copy to the host: smaller ones are losses and flags, read between weights that come back too."""
LIKE_FRAC = 0.5
"""Of what was sent, that comes back: weights of 2 bytes for gradients of 4."""


def pauses_with_sent(trace: Trace, device: int, pauses: Intervals, steps: int) -> Intervals:
    """The pauses at which SENT_BYTES or more lie on the host, sent since the pause before and not taken back,
    of which LIKE_FRAC comes back behind the pause, before more is sent: gradients, then weights. Activations
    are back before the step ends, and a checkpoint does not come back. A pause that copies back divide is
    one. None where that is so in less than half of the steps: batches come behind what was saved once."""
    copies = trace.copies
    if not len(pauses) or not len(copies):
        return EMPTY
    large = (copies.kind == CopyKind.DEVICE_TO_HOST) & (copies.bytes >= LEAST_BYTES)
    moves = large | (copies.kind == CopyKind.HOST_TO_DEVICE)
    rows = np.flatnonzero((copies.device == device) & moves & (copies.bytes > 0))
    rows = rows[np.argsort(copies.start_ns[rows], kind="stable")]
    sends = copies.kind[rows] == CopyKind.DEVICE_TO_HOST
    there = np.append(0, np.cumsum(np.where(sends, 1, -1) * copies.bytes[rows]))
    at = np.searchsorted(copies.start_ns[rows], pauses.end_ns, "left")
    sent = np.append(0, np.cumsum(sends))[at]
    begins = np.append(True, np.diff(sent) > 0)
    first = np.flatnonzero(begins)
    since = np.append(0, at)[first].tolist()
    least = np.array([there[a : b + 1].min() for a, b in zip(since, at[first].tolist(), strict=True)])
    left = there[at[first]] - least
    back = there[at[first]] - there[np.searchsorted(np.cumsum(sends), sent[first], "right")]
    likely = (left >= SENT_BYTES) & (back >= LIKE_FRAC * left)
    if 2 * np.count_nonzero(likely) < steps:
        return EMPTY
    held = likely[np.cumsum(begins) - 1]
    return Intervals(pauses.start_ns[held], pauses.end_ns[held])
