"""What a measurement of SM contention on one device says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfdoc.analyzers.base.spot import Spot

Verdict = Literal["slower", "no_difference", "undecided", "too_few_samples", "mixed_work"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Nanoseconds that runs took beyond what they take alone, summed; concurrent runs count twice.

    mid against the median alone; low and high against the longest and the shortest tenth alone. An upper
    bound of what can be won: only what the step waits for shortens it.
    """

    low_ns: int
    mid_ns: int
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class ContendedKernel:
    """One kernel in one launch shape that ran beside communication; medians and tenths in ns."""

    kernel: str
    kernel_class: str
    family: str
    """Library by its name: transformer_engine, apex, cudnn, torch, triton, inductor, cublas, ... or other."""
    element_type: str
    """Where the name carries it; empty otherwise."""
    grid_blocks: int
    """-1 unknown."""
    block_threads: int
    """-1 unknown."""
    alone_ns: int | None
    """Median with nothing else on the device; None without such a run."""
    alone_low_ns: int | None
    alone_high_ns: int | None
    samples_alone: int
    contended_ns: int | None
    """Median of the runs beside communication for half of their time or more; None without such a run."""
    contended_low_ns: int | None
    contended_high_ns: int | None
    samples_contended: int
    samples_whole: int
    """Of samples_contended those beside communication all of the time."""
    samples_slight: int
    """Beside communication for less than half of the time: in neither set."""
    samples_crowded: int
    """Beside other compute: in neither set."""
    p_value: float | None
    """Two-sided, Mann and Whitney; None where a set is empty."""
    verdict: Verdict
    verdict_reason: str
    """Why there is no decision; empty where there is one."""
    caveat: str
    """What `slower` does not prove: the launch shape does not hold all that the work depends on."""
    cost: Cost | None
    """Where the verdict is `slower`; None otherwise."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """SM contention on one device, inside the window."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    signatures: Sequence[ContendedKernel]
    """Norms, by falling cost, then by time beside communication."""
    other_signatures: Sequence[ContendedKernel]
    """Matrix products and attention, likewise."""
    norms: int | None
    """Runs of norm kernels in the window; None: not measured."""
    norm_cost: Cost | None
    """Sum over the norms whose verdict is `slower`; None where no verdict could be reached."""
    other_cost: Cost | None
    stalled_starts: int | None
    """Norms held up by resident communication that started as it ended; None: not measured."""
    stalled_ns: int | None
    """How long they waited in all."""
    undecided_starts: int | None
    """Norms that look so, but may have waited for something else."""
    other_stalled_starts: int | None
    """Other compute kernels that look the same. Where there are as many, the cause is not the norms' need
    for room but the order in which the host's queues reach the device."""
    stalled_reason: str
    """Why not; empty where measured."""
    occupied_blocks: int | None
    """Most thread blocks of communication resident at a time while norms ran, or were held up."""
    typical_occupied_blocks: int | None
    suggested_sm_margin: int | None
    margin_reason: str
    """Why there is none; empty where there is one."""
    worst: Sequence[Spot] = ()
    """The run that took longest beyond what its kernel takes alone, of the norms that are slower and of the
    others."""


def not_measured(reason: str, remedy: str) -> Contention:
    """No result, and why."""
    return Contention(
        state="not_measured",
        reason=reason,
        remedy=remedy,
        signatures=(),
        other_signatures=(),
        norms=None,
        norm_cost=None,
        other_cost=None,
        stalled_starts=None,
        stalled_ns=None,
        undecided_starts=None,
        other_stalled_starts=None,
        stalled_reason=reason,
        occupied_blocks=None,
        typical_occupied_blocks=None,
        suggested_sm_margin=None,
        margin_reason=reason,
    )
