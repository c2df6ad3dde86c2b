"""One rank's row of the pipeline's table: its idle time of each step, divided into parts that sum to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.results.waits import PipelineStage, StageRole


@dataclass(frozen=True, kw_only=True)
class Split:
    """Nanoseconds; bubble + transfer + handover + late_peer = idle."""

    idle_ns: int
    bubble_ns: int
    transfer_ns: int
    handover_ns: int
    late_peer_ns: int

    def __post_init__(self) -> None:
        parts = (self.bubble_ns, self.transfer_ns, self.handover_ns, self.late_peer_ns)
        assert min(parts) >= 0, parts
        assert sum(parts) == self.idle_ns, (parts, self.idle_ns)

    def __add__(self, other: Split) -> Split:
        return Split(
            idle_ns=self.idle_ns + other.idle_ns,
            bubble_ns=self.bubble_ns + other.bubble_ns,
            transfer_ns=self.transfer_ns + other.transfer_ns,
            handover_ns=self.handover_ns + other.handover_ns,
            late_peer_ns=self.late_peer_ns + other.late_peer_ns,
        )


NOTHING = Split(idle_ns=0, bubble_ns=0, transfer_ns=0, handover_ns=0, late_peer_ns=0)


def split_idle(*, idle_ns: int, ideal_ns: int, transfer_ns: int, handover_ns: int) -> Split:
    """Divide idle time: transfer and handover first, then at most the ideal bubble, then what is left.

    A stage that is slower than the mean may idle less than the mean's ideal bubble: then all of it is bubble.

    >>> split_idle(idle_ns=100, ideal_ns=60, transfer_ns=10, handover_ns=5).late_peer_ns
    25
    """
    transfer = min(transfer_ns, idle_ns)
    handover = min(handover_ns, idle_ns - transfer)
    bubble = min(ideal_ns, idle_ns - transfer - handover)
    return Split(
        idle_ns=idle_ns,
        bubble_ns=bubble,
        transfer_ns=transfer,
        handover_ns=handover,
        late_peer_ns=idle_ns - transfer - handover - bubble,
    )


def ideal_bubble_ns(own_ns: int, stages: int, *, pp: int, vpp: int, micro_batches: int) -> int:
    """(pp - 1) / (vpp * micro-batches) of the mean own time of some stages, rounded down.

    >>> ideal_bubble_ns(4 * 800, 4, pp=4, vpp=1, micro_batches=8)  # 3 / 8 of 800
    300
    """
    return (pp - 1) * own_ns // (stages * vpp * micro_batches)


@dataclass(kw_only=True)
class RowSums:
    """A row under construction."""

    stage: int | None
    steps: int = 0
    split: Split = NOTHING
    window_ns: int = 0
    step_ns: int = 0
    compute_ns: int = 0
    path_ns: int | None = None
    mean_own_ns: float | None = None
    """Own time of the mean stage of its pipeline, over the same steps."""

    def add(
        self,
        split: Split,
        *,
        window_ns: int,
        step_ns: int,
        compute_ns: int,
        path_ns: int | None = None,
        mean_own_ns: float | None = None,
    ) -> None:
        """Add a step."""
        self.steps += 1
        self.split += split
        self.window_ns += window_ns
        self.step_ns += step_ns
        self.compute_ns += compute_ns
        if path_ns is not None:
            self.path_ns = (self.path_ns or 0) + path_ns
        if mean_own_ns is not None:
            self.mean_own_ns = (self.mean_own_ns or 0.0) + mean_own_ns

    @property
    def own_ns(self) -> int:
        """What is not idle."""
        return self.window_ns - self.split.idle_ns

    @property
    def own_over_mean(self) -> float | None:
        """None where the other stages are not known."""
        return self.own_ns / self.mean_own_ns if self.mean_own_ns else None


def row_of(rank: PipelineRank, sums: RowSums, pp: int) -> PipelineStage:
    """The row of a rank."""
    split = sums.split
    return PipelineStage(
        rank=rank.rank,
        label=rank.label,
        stage=sums.stage,
        role=_role(sums.stage, pp),
        steps=sums.steps,
        window_ns=sums.window_ns,
        idle_ns=split.idle_ns,
        bubble_ns=split.bubble_ns,
        transfer_ns=split.transfer_ns,
        handover_ns=split.handover_ns,
        late_peer_ns=split.late_peer_ns,
        own_ns=sums.own_ns,
        compute_ns=sums.compute_ns,
        own_over_mean=sums.own_over_mean,
        path_ns=sums.path_ns,
        forward_ns=mean_pass_ns(rank, forward=True),
        backward_ns=mean_pass_ns(rank, forward=False),
        phase_source=rank.phase_source,
    )


def mean_pass_ns(rank: PipelineRank, *, forward: bool) -> int | None:
    """Mean length of the passes of a kind; None where there are none."""
    passes = rank.passes
    length = (passes.end_ns - passes.start_ns)[passes.is_forward == forward]
    return int(np.mean(length)) if len(length) else None


def _role(stage: int | None, pp: int) -> StageRole:
    if stage is None:
        return "unknown"
    return "embedding" if stage == 0 else "loss" if stage == pp - 1 else "middle"
