"""What communication takes by its size, as far as it was captured.

A collective takes a latency, and what each rank moves at the bandwidth. The latency of a dimension follows
from its smallest and largest messages; where all are of a size, from the tiny ones of any dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdoc.simulator.job.rank import Traffic

_TINY_BYTES = 65_536
_APART = 4
"""Largest over smallest size, at least, for a line through both."""
_LATENCY_MAX_FRAC = 0.5
"""Of what the smallest message takes."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Communication where nobody is late."""

    latency_frac: Mapping[str, float]
    """By dimension seen, the share of its time that does not follow the size."""
    latency_ns: float
    """Of a collective, as the quickest dimension has it; 0 unknown."""
    ns_per_byte: float | None
    """Of what a rank moves, as the quickest dimension has it; None unknown."""
    seen_in: str
    """That dimension."""

    def takes(self, moved_bytes: float, count: float = 1.0) -> float:
        """`count` collectives of a dimension that was not seen, each moving so much. ValueError where no
        collective tells a bandwidth."""
        if self.ns_per_byte is None:
            raise ValueError("no size of a collective is known: what others would take is unknown")
        return count * (self.latency_ns + moved_bytes * self.ns_per_byte)


def network_of(traffic: Sequence[Traffic], sizes: Mapping[str, int]) -> Network:
    """Fit one rank's traffic. sizes: ranks of a group by dimension."""
    known = [t for t in traffic if t.bytes > 0 and t.fast_ns > 0]
    tiny = min((t.fast_ns for t in known if t.bytes <= _TINY_BYTES), default=0.0)
    fracs, lines = {}, []
    for name in sorted({t.dimension for t in known} - {"pp"}):  # a message contains its wait
        mine = [t for t in known if t.dimension == name]
        points = sorted((_moved(t, sizes.get(name, 2)), t.fast_ns) for t in mine)
        latency, slope = _line(points, tiny)
        whole = sum(t.per_step * t.fast_ns for t in mine)
        fracs[name] = min(sum(t.per_step * latency for t in mine) / whole, 1.0)
        if slope > 0 and points[-1][0] > _TINY_BYTES:
            lines.append((slope, latency, name))
    slope, latency, name = min(lines, default=(0.0, tiny, ""))
    return Network(latency_frac=fracs, latency_ns=latency, ns_per_byte=slope if name else None, seen_in=name)


def _moved(one: Traffic, members: int) -> float:
    """What a rank moves: of an all-gather bytes are one rank's part, of an all-reduce the whole."""
    n = max(members, 2)
    if one.collective == "all_reduce":
        return one.bytes * 2 * (n - 1) / n
    return float(one.bytes * (n - 1) if one.collective in ("all_gather", "reduce_scatter") else one.bytes)


def _line(points: Sequence[tuple[float, float]], tiny: float) -> tuple[float, float]:
    """(latency, time per byte) from (bytes, time), ascending."""
    (small, quick), (large, slow) = points[0], points[-1]
    if large >= _APART * small and slow > quick:
        slope = (slow - quick) / (large - small)
        latency = min(max(quick - slope * small, 0.0), quick)
    else:
        latency = min(tiny, _LATENCY_MAX_FRAC * quick)
    return latency, max(slow - latency, 0.0) / large
