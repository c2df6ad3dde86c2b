"""SM contention: slowdown of norms and other kernels during communication."""

from __future__ import annotations

from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured

Verdict = Literal["slower", "no_difference", "undecided", "too_few_samples", "mixed_work"]


@dataclass(frozen=True, kw_only=True)
class ContentionCost:
    """Nanoseconds beyond what the runs take alone, summed over runs and devices: an upper bound of a gain.

    mid against the median alone, low and high against the longest and the shortest tenth alone.
    """

    low_ns: int
    mid_ns: int
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class DeviceContendedKernel:
    """One kernel in one launch shape on one device; medians and tenths of its runs."""

    kernel: str
    kernel_class: str
    family: str
    """Library by its name; only transformer_engine's norms obey its SM margins."""
    element_type: str
    """Where the name carries it; empty otherwise."""
    grid_blocks: int
    """-1 unknown."""
    block_threads: int
    """-1 unknown."""
    alone_ns: int | None
    """Median with nothing else on the device; None without such a run."""
    samples_alone: int
    contended_ns: int | None
    """Median of the runs during communication for half of their time or more; None without such a run."""
    samples_contended: int
    verdict: Verdict
    """no_difference: 5 % or more is ruled out. undecided: neither it nor `slower` is proven."""
    verdict_reason: str
    """Why there is no decision; empty where there is one."""
    caveat: str
    """What `slower` does not prove: the launch shape does not hold all that the work depends on."""
    cost: ContentionCost | None
    """Where the verdict is `slower`."""


@dataclass(frozen=True, kw_only=True)
class DeviceContention(Measured):
    """SM contention on one device, inside its window."""

    signatures: list[DeviceContendedKernel]
    """Norms, by falling cost, then by time during communication."""
    other_signatures: list[DeviceContendedKernel]
    """GEMMs and attention, likewise."""
    norms: int | None
    """Runs of norm kernels in the window; null where it is not measured."""
    norm_cost: ContentionCost | None
    """Sum over the norms whose verdict is `slower`; None where no verdict could be reached."""
    other_cost: ContentionCost | None
    stalled_starts: int | None
    """Norms delayed by resident communication: they started as it ended."""
    stalled_ns: int | None
    """How long they waited in all."""
    undecided_starts: int | None
    """Norms that look so, but may have waited for something else."""
    other_stalled_starts: int | None
    """Other compute kernels that look the same: a control. Where there are as many, the cause is not the
    norms' need for room but the order in which the host's queues reach the device."""
    stalled_reason: str
    """Why these are not measured; empty where they are."""
    occupied_blocks: int | None
    """Most thread blocks of communication resident at a time while norms ran, or were delayed."""
    typical_occupied_blocks: int | None
    suggested_sm_margin: int | None
    margin_reason: str


@dataclass(frozen=True, kw_only=True)
class ContendedKernel:
    """One kernel in one launch shape over all devices."""

    kernel: str
    kernel_class: str
    family: str
    """Library by its name; only transformer_engine's norms obey its SM margins."""
    element_type: str
    grid_blocks: int
    """-1 unknown."""
    block_threads: int
    """-1 unknown."""
    alone_ns: int | None
    """Median over the devices' medians, each weighted with its samples."""
    contended_ns: int | None
    samples_alone: int
    samples_contended: int
    devices: int
    """Devices on which it overlapped communication."""
    slower_devices: int
    """Of these, the ones where it is slower by more than chance."""
    undecided_devices: int
    """Of these, the inconclusive ones: too few samples, or mixed work."""
    undecided_reason: str
    """Why not, on the first of these; empty where there is none."""
    caveat: str
    """What `slower` does not prove."""
    cost: ContentionCost | None
    """Sum over the devices where it is slower; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class NormContentionAnalysis(Measured):
    """SM contention of the job: sums over devices unless said otherwise."""

    devices: int
    """That were measured."""
    signatures: list[ContendedKernel]
    """Norms, by falling cost."""
    other_signatures: list[ContendedKernel]
    """GEMMs and attention, by falling cost."""
    norm_cost: ContentionCost | None
    other_cost: ContentionCost | None
    stalled_starts: int | None
    """Norms delayed by resident communication: they started as it ended."""
    stalled_ns: int | None
    """How long they waited in all."""
    undecided_starts: int | None
    """Norms that look so, but may have waited for something else."""
    other_stalled_starts: int | None
    """Other compute kernels that look the same: a control."""
    occupied_blocks: int | None
    """Most thread blocks of communication resident at a time while norms ran, or were delayed."""
    typical_occupied_blocks: int | None
    suggested_sm_margin: int | None
    """The largest of any device: SMs to leave free for communication. Only if one of Transformer Engine's
    norms is proven to be slowed or delayed by communication."""
    margin_reason: str
    """Why there is no margin; empty where there is one."""
