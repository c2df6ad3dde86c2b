"""The rows of ranks, whose idle time is divided into parts that sum to it, and the analysis made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from perfdoc.analyzers.pipeline.layout import Layout, ideal_bubble_frac, perfect_schedule
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.records import dataclass
from perfdoc.results.figures import duration
from perfdoc.results.waits import PipelineAnalysis, PipelineStage, StageRole

_CLOCK_REMEDY = "Capture all ranks of a node in one nsys session: then they share a clock."


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


@dataclass(frozen=True, kw_only=True)
class Sizes(Layout):
    """All of them known."""

    pp: int
    vpp: int
    micro_batches: int

    def ideal_ns(self, own_ns: int, stages: int) -> int:
        """The bubble that the mean own time of some stages must have."""
        return ideal_bubble_ns(own_ns, stages, pp=self.pp, vpp=self.vpp, micro_batches=self.micro_batches)


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """What clocks leave open, in one step of one rank."""

    idle_ns: int = 0
    transfer_ns: int = 0
    matched_frac: float | None = None


def not_measured(reason: str, remedy: str, layout: Layout) -> PipelineAnalysis:
    """No result, and why; what is known of the layout is kept."""
    pp, vpp, micro_batches = layout.pp, layout.vpp, layout.micro_batches
    return PipelineAnalysis.missing(
        reason,
        remedy,
        pp=pp,
        vpp=vpp,
        micro_batches=micro_batches,
        sources=dict(layout.sources),
        ideal_bubble_frac=None
        if pp is None or vpp is None or micro_batches is None
        else ideal_bubble_frac(pp=pp, vpp=vpp, micro_batches=micro_batches),
        notes=list(layout.notes),
    )


def measured(
    ranks: Sequence[PipelineRank],
    sums: Mapping[int, RowSums],
    sizes: Sizes,
    *,
    scope: Literal["job", "rank"],
    pipelines: int = 0,
    certainty: Certainty,
) -> PipelineAnalysis:
    """Put rows of ranks (by position) together; not measured if it is within clock error."""
    window = sum(r.window_ns for r in sums.values())
    if not window:
        reason = "no step holds the passes of all stages"
        return not_measured(reason, "Capture whole steps of every stage.", sizes)
    split = sum((r.split for r in sums.values()), start=NOTHING)
    times = sum(r.steps for r in sums.values())
    if certainty.idle_ns and split.idle_ns <= certainty.idle_ns * times:
        return not_measured(
            f"the idle time of a stage in a step, {duration(split.idle_ns // times)}, is within clock error, "
            f"{duration(certainty.idle_ns)}",
            _CLOCK_REMEDY,
            sizes,
        )

    def share(part_ns: int, open_ns: int) -> float | None:
        return part_ns / window if not open_ns or part_ns > open_ns * times else None

    bubble = share(split.bubble_ns, certainty.idle_ns)
    transfer = share(split.transfer_ns, certainty.transfer_ns)
    late_peer = share(split.late_peer_ns, certainty.idle_ns + certainty.transfer_ns)
    shares = {"bubble": bubble, "transfer": transfer, "late peer": late_peer}
    unclear = [name for name, value in shares.items() if value is None]
    reason = f"{', '.join(unclear)} within clock error" if unclear else ""
    remedy = _CLOCK_REMEDY if unclear else ""
    if scope == "rank":
        late_peer = None
        reason = "late peer: one rank alone does not show whether a peer was late or its messages took long"
        remedy = (
            "Give the captures of all stages; of one node in one nsys session, so that they share a clock."
        )
    slowest = _slowest(sums) if split.late_peer_ns and late_peer is not None else None
    order = sorted(sums, key=lambda at: (sums[at].stage is None, sums[at].stage or 0, at))
    return PipelineAnalysis(
        state="measured",
        reason=reason,
        remedy=remedy,
        scope=scope,
        pp=sizes.pp,
        vpp=sizes.vpp,
        micro_batches=sizes.micro_batches,
        sources=dict(sizes.sources),
        steps=max(r.steps for r in sums.values()),
        pipelines=pipelines,
        bubble_frac=bubble,
        ideal_bubble_frac=ideal_bubble_frac(pp=sizes.pp, vpp=sizes.vpp, micro_batches=sizes.micro_batches),
        transfer_frac=transfer,
        handover_frac=split.handover_ns / window,
        late_peer_frac=late_peer,
        window_ns=window,
        step_ns=sum(r.step_ns for r in sums.values()),
        idle_ns=split.idle_ns,
        imbalance_ns=_imbalance_ns(ranks, sums, sizes) if scope == "job" else None,
        uncertainty_ns=certainty.idle_ns,
        matched_frac=certainty.matched_frac,
        slowest_rank=None if slowest is None else ranks[slowest].rank,
        slowest_stage=None if slowest is None else sums[slowest].stage,
        slowest_over_mean=None if slowest is None else sums[slowest].own_over_mean,
        stages=[row_of(ranks[position], sums[position], sizes.pp) for position in order],
        notes=list(sizes.notes),
    )


def _slowest(sums: Mapping[int, RowSums]) -> int | None:
    """Position of the rank that exceeds the mean of its pipeline most."""
    over = {i: r.own_over_mean for i, r in sums.items() if r.own_over_mean is not None}
    return max(over, key=lambda i: over[i]) if over else None


def _imbalance_ns(ranks: Sequence[PipelineRank], sums: Mapping[int, RowSums], sizes: Sizes) -> int | None:
    """What of late peer a perfect schedule with each stage's own mean time (over steps and replicas) has."""
    rows: dict[int, list[int]] = defaultdict(list)
    for position, row in sums.items():
        if row.stage is not None:
            rows[row.stage].append(position)
    if len(rows) < sizes.pp:
        return None
    forward, backward = [], []
    for stage in range(sizes.pp):
        steps = sum(sums[i].steps for i in rows[stage])
        one = sum(sums[i].own_ns for i in rows[stage]) / (steps * sizes.vpp * sizes.micro_batches)
        f = [mean_pass_ns(ranks[i], forward=True) for i in rows[stage]]
        b = [mean_pass_ns(ranks[i], forward=False) for i in rows[stage]]
        if None in f or None in b:
            return None
        ahead, both = sum(x or 0 for x in f), sum(x or 0 for x in (*f, *b))
        forward.append(one * ahead / both)
        backward.append(one - forward[-1])
    perfect = perfect_schedule(
        vpp=sizes.vpp, micro_batches=sizes.micro_batches, forward=forward, backward=backward
    )
    if perfect is None:
        return None
    even = sum(perfect.own) / sizes.pp * (sizes.pp - 1) / (sizes.vpp * sizes.micro_batches)
    return sum(
        min(sums[i].split.late_peer_ns, round(max(0.0, perfect.idle(stage) - even) * sums[i].steps))
        for stage, positions in rows.items()
        for i in positions
    )
