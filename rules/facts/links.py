"""Expected bus bandwidth of a group's links, and the bandwidth reached.

From the GPU's name and the layout alone: usual servers, ranks placed node after node with tensor parallelism
innermost, and the network cards most common in such servers (200 Gb/s per GPU with Ampere, 400 with Hopper
and Blackwell). None of this is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfdoc.rules.engine.case import Case

_NVLINK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 300.0, "hopper": 450.0, "blackwell": 900.0})
"""10^9 bytes per second and direction; half of the advertised total."""
_NETWORK_GBPS: Mapping[str, float] = MappingProxyType({"ampere": 25.0, "hopper": 50.0, "blackwell": 50.0})
_KNOWN_FRAC = 0.5
"""Rows of known bandwidth represent all rows if they are this share of the time."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link that limits a group's collectives."""

    gbps: float
    """Bus bandwidth that it allows, 10^9 bytes per second."""
    crosses: bool
    """Whether the group spans more than one NVLink domain."""
    inside: int
    """Ranks of the group in one domain."""

    @property
    def words(self) -> str:
        """The link's name."""
        return "the usual network cards of such servers" if self.crosses else "NVLink"


def usual_link(case: Case, ranks: int, stride: int) -> Link | None:
    """The link of groups of `ranks` ranks with a stride of `stride`; None if the servers are unknown.

    64 ranks with stride 4 on HGX H100: 2 of a group in each node, so min(450, 2 x 50) = 100 GB/s.
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
        return None  # A800 and H800 have reduced NVLink bandwidth
    nvlink = _NVLINK_GBPS[gpu.architecture]
    inside = max(1, min(ranks, gpu.nvlink_domain // max(stride, 1)))
    if ranks * stride <= gpu.nvlink_domain:
        return Link(gbps=nvlink, crosses=False, inside=ranks)
    return Link(gbps=min(nvlink, inside * _NETWORK_GBPS[gpu.architecture]), crosses=True, inside=inside)


def reached_gbps(case: Case, dimension: str) -> float | None:
    """Time-weighted bus bandwidth of a dimension's collectives, without waiting for late ranks if that was
    measured; None if it is known for less than half of the time."""
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    known = [(r.bus_bandwidth_gbps, r.total_ns) for r in rows if r.bus_bandwidth_gbps is not None]
    time = sum(ns for _, ns in known)
    if not time or time < _KNOWN_FRAC * sum(r.total_ns for r in rows):
        return None
    waits = [w for w in case.job.skew.waits if w.dimension == dimension and w.transfer_ns > 0]
    own, transfer = sum(w.own_ns for w in waits), sum(w.transfer_ns for w in waits)
    late = own / transfer if transfer else 1.0
    return sum(gbps * ns for gbps, ns in known) / time * late
