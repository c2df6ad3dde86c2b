"""A track in as many columns as a picture can show.

What is wider than a column is drawn as it is. What is narrower shares one with its neighbours: there each
code takes the part of the height that it had of the time, so that areas are times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfdoc.results import TimelineTrack


class Patch(NamedTuple):  # of which there are thousands: a dataclass takes five times as long to make
    """A rectangle: times since the step began, heights as fractions of the row from its top."""

    code: int
    start_ns: int
    end_ns: int
    top_frac: float
    bottom_frac: float


def patches(track: TimelineTrack, column_ns: int) -> Iterator[Patch]:
    """The track in columns of at least `column_ns`."""
    held: dict[int, int] = {}
    first = last = 0

    def flush() -> Iterator[Patch]:
        top = 0.0
        for code, ns in sorted(held.items()):
            bottom = top + ns / (last - first)
            yield Patch(code=code, start_ns=first, end_ns=last, top_frac=top, bottom_frac=min(bottom, 1.0))
            top = bottom
        held.clear()

    for start, length, code in zip(track.start_ns, track.duration_ns, track.code, strict=True):
        if length <= 0:
            continue
        end = start + length
        if held and (length >= column_ns or start - last >= column_ns or last - first >= column_ns):
            yield from flush()
        if length >= column_ns:
            yield Patch(code=code, start_ns=start, end_ns=end, top_frac=0.0, bottom_frac=1.0)
            continue
        if not held:
            first = start
        last = max(end, last) if held else end
        held[code] = held.get(code, 0) + length
    if held:
        yield from flush()
