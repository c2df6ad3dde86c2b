"""What the links between the ranks of a group usually carry, and how much of it was reached.

From the GPU's name and the layout alone: servers are taken to be the usual ones, and ranks to be placed node
after node with tensor parallelism innermost. Network cards are those of such servers as they are sold most
often (200 Gb/s a GPU beside Ampere, 400 beside Hopper and Blackwell), which nobody checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfdoc.rules.engine.case import Case

_NVLINK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 300.0, "hopper": 450.0, "blackwell": 900.0})
"""10^9 bytes a second and direction; half of what is sold as total."""
_NETWORK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 25.0, "hopper": 50.0, "blackwell": 50.0})
_KNOWN_FRAC = 0.5
"""Rows whose bandwidth is known stand for all where they are this much of the time."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What limits a group's collectives."""

    gbps: float
    """Bus bandwidth that it would allow, 10^9 bytes a second."""
    crosses: bool
    """Whether the group reaches over more than one NVLink domain."""
    inside: int
    """Ranks of the group in one domain."""

    @property
    def words(self) -> str:
        """What it is."""
        return "network cards as servers like these usually have" if self.crosses else "NVLink"


def usual_link(case: Case, ranks: int, stride: int) -> Link | None:
    """The link of groups of `ranks` ranks that lie `stride` apart; None where the servers are not known.

    64 ranks 4 apart on HGX H100: 2 of a group in each node, so min(450, 2 x 50) = 100 GB/s.
    """
    gpu = case.gpu
    if (
        gpu is None
        or gpu.nvlink_domain is None
        or gpu.nvlink_domain < 2
        or gpu.architecture not in _NVLINK_GBPS
    ):
        return None
    if any("800" in (r.device.gpu_name or "") for r in case.ranks):
        return None  # A800 and H800 have part of NVLink taken away
    nvlink = _NVLINK_GBPS[gpu.architecture]
    inside = max(1, min(ranks, gpu.nvlink_domain // max(stride, 1)))
    if ranks * stride <= gpu.nvlink_domain:
        return Link(gbps=nvlink, crosses=False, inside=ranks)
    return Link(gbps=min(nvlink, inside * _NETWORK_GBPS[gpu.architecture]), crosses=True, inside=inside)


def reached_gbps(case: Case, dimension: str) -> float | None:
    """Bus bandwidth of a dimension's collectives by their time, waiting for late ranks left out where it was
    measured; None where it is not known of half of the time."""
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    known = [(r.bus_bandwidth_gbps, r.total_ns) for r in rows if r.bus_bandwidth_gbps is not None]
    time = sum(ns for _, ns in known)
    if not time or time < _KNOWN_FRAC * sum(r.total_ns for r in rows):
        return None
    waits = [w for w in case.job.skew.waits if w.dimension == dimension and w.transfer_ns > 0]
    own, transfer = sum(w.own_ns for w in waits), sum(w.transfer_ns for w in waits)
    late = own / transfer if transfer else 1.0
    return sum(gbps * ns for gbps, ns in known) / time * late
