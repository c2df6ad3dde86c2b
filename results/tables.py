"""Tables in full, each a list of flat rows: collectives by message size, copies by
direction, all-to-all by rank, GPU metrics by kernel class.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured


@dataclass(frozen=True, kw_only=True)
class CollectiveSize:
    """Communication of one kind and message size over all ranks' windows."""

    dimension: str
    collective: str
    transport: str
    least_bytes: int
    """Smallest message of the row."""
    most_bytes: int
    """Largest; equal to the smallest where the row has one size."""
    ranks: int | None
    """Of the group; None where it is unknown or differs."""
    count: int
    """Operations of all ranks: a collective counts once on each rank that was captured."""
    total_ns: int
    """Sum of durations, waiting for late ranks included."""
    mean_ns: int
    matched: int
    """Operations that were matched with other ranks', so that their transfer is known."""
    transfer_ns: int | None
    """Sum of their transfers: from the last rank's arrival on. None of none."""
    basis: Literal["transfer", "duration"]
    """What the bandwidth is over: the transfers of the matched operations, or the durations of all."""
    bus_bandwidth_gbps: float | None
    """10^9 bytes a second, as nccl-tests counts; None where the collective has no factor or the group's size
    is unknown."""
    best_gbps: float | None
    """Most of the rows of this dimension, collective and transport with messages of this size or larger."""
    of_best_frac: float | None
    link_gbps: float | None = None
    """What the link usually allows, by the GPU's datasheet and the layout; None where that is not known."""
    link: str = ""
    """Its name."""


@dataclass(frozen=True, kw_only=True)
class CopyRow:
    """Copies and sets of one kind on one rank, inside the window."""

    direction: str
    """`host to device`, `device to host`, `device to device`, `peer to peer`, `memset`, ..."""
    memory: Literal["pinned", "pageable", "unknown", ""]
    """Of the host, for copies between it and the device."""
    communication: bool
    """Between ranks: its exposed time is in `exposed_comm`, not in `exposed_memcpy`."""
    count: int
    total_ns: int
    """Of all of them whole, one after the other."""
    bytes: int | None
    """None where one does not say."""
    gbps: float | None
    """10^9 bytes a second over their own durations."""
    largest_bytes: int | None
    exposed_ns: int
    """Beside no compute (and, of a copy that is no communication, no communication); concurrent ones count
    twice."""
    rank: str = ""


@dataclass(frozen=True, kw_only=True)
class AllToAllRow:
    """All-to-all of one rank in one dimension, inside the window."""

    dimension: str
    count: int
    """Those whose bytes are known."""
    unknown: int
    """Those whose bytes are not."""
    sent_bytes: int
    """To all ranks, itself included."""
    received_bytes: int | None
    """None where one of them does not say."""
    to_most_over_mean: float | None
    """What goes to the rank that is sent most over the mean of the group, call by call: sum of the largest
    part over the sum of the mean one. None where the parts are not known."""
    rank: str = ""


@dataclass(frozen=True, kw_only=True)
class AllToAllBalance:
    """All-to-all of one dimension over ranks; 1 is even."""

    dimension: str
    ranks: int
    sent_most_over_mean: float | None
    """Bytes sent in the window by the rank that sends most, over the mean."""
    received_most_over_mean: float | None
    most_received: str
    """Label of the rank that receives most; empty where it is not known or all are even."""


@dataclass(frozen=True, kw_only=True)
class AllToAll(Measured):
    """Bytes of all-to-all by rank, and how even they are."""

    by_rank: list[AllToAllRow] = field(default_factory=list)
    balance: list[AllToAllBalance] = field(default_factory=list)
    """Where several ranks are known."""


@dataclass(frozen=True, kw_only=True)
class MetricMean:
    """One of Nsight's GPU metrics on one rank: its mean while kernels of one class ran alone."""

    metric: str
    """As the capture names it, with its unit: `SMs Active [Throughput %]`."""
    meaning: str
    """sm_active, tensor_active, dram_read, dram_write, nvlink_rx, pcie_tx, ...; empty of another metric."""
    kernel_class: str
    """`idle`: nothing ran. `mixed`: several classes, or one for a part of the sample's time. `all`: whatever
    ran."""
    samples: int
    mean: float
    most: int
    """Largest sample."""
    rank: str = ""


@dataclass(frozen=True, kw_only=True)
class GpuMetrics(Measured):
    """What Nsight sampled of the GPU's counters."""

    rows: list[MetricMean] = field(default_factory=list)
    period_ns: int | None = None
    """Median time between two samples; None of none."""


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Every table."""

    collectives: list[CollectiveSize]
    """Of operations whose size is known, by falling total time of their kind, then by size."""
    copies: list[CopyRow]
    all_to_all: AllToAll
    gpu_metrics: GpuMetrics
