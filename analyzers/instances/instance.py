"""What is told of one instance, and how much of the time around it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.timeline.rank_timeline import Track

_LEAST_PAD_NS = 50_000
_MOST_PAD_NS = 5_000_000
_LONG_PAD_FRAC = 0.1
"""Of a long instance so much is shown on either side, where that is more than _MOST_PAD_NS."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The worst instance of its kind on one device, with what ran around it."""

    spot: Spot
    step: str
    """Of the step in which it began; empty where the window is not made of steps."""
    first_ns: int
    """Of what is kept, on the capture's clock."""
    last_ns: int
    tracks: Mapping[str, Track]
    """By kind; of communication one for each dimension, `communication dp`."""


def padded(start_ns: int, end_ns: int) -> tuple[int, int]:
    """Bounds of what is shown: an instance and as much again on either side, 50 us at least and 5 ms at
    most, or a tenth of a longer one.

    >>> padded(1_000_000, 1_200_000)
    (800000, 1400000)
    """
    length = end_ns - start_ns
    pad = max(_LEAST_PAD_NS, min(length, _MOST_PAD_NS), int(length * _LONG_PAD_FRAC))
    return start_ns - pad, end_ns + pad
