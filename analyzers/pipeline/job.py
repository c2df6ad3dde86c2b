"""Pipeline idle of a job, divided into what the schedule must have, transfer, and waiting for a late peer.

Whatever of a pipeline's window is not a stage's own time is its idle time:

- bubble: what a perfect schedule of this pp, vpp and number of micro-batches leaves idle, on the stages' mean
  own time;
- transfer: messages on the critical path, from when both sides had come to their end, as far as they make the
  stages idle longer than that;
- handover: the short gaps between compute and messages on that path, likewise;
- late peer: the rest. Stages that take longer than the mean, or a rank that came late, cause it.

They sum to the idle time exactly. docs/ranks.md has the definitions and their limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfdoc.analyzers.pipeline.layout import Positions, find_layout, find_pipelines, stage_by_warm_up
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.pipeline.recorded_passes import completed
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.analyzers.pipeline.result import Certainty, RowSums, Sizes, measured, not_measured, split_idle
from perfdoc.records import dataclass
from perfdoc.results.waits import PipelineAnalysis
from perfdoc.traces.job_facts import JobFacts

if TYPE_CHECKING:
    from perfdoc.analyzers.pipeline.windows import CommonTime, Window


def measure_pipeline(
    ranks: Sequence[PipelineRank],
    facts: JobFacts,
    common: CommonTime | None = None,
    schedule: JobSchedule | None = None,
) -> PipelineAnalysis:
    """Measure the pipelines of a job.

    common: clocks of all ranks put on one, by position in `ranks`; without it stages in different captures
    are measured one by one. schedule: as the messages of all ranks show it.
    """
    usable = [r for r in ranks if r.state == "measured"]
    layout = find_layout(usable, facts)
    layout = layout if schedule is None else completed(layout, schedule)
    if layout.pp == 1:
        return not_measured("the job has no pipeline parallelism", "", layout)
    if not usable:
        reason, remedy = next(((r.reason, r.remedy) for r in ranks), ("no rank was given", ""))
        return not_measured(reason, remedy, layout)
    if layout.pp is None or layout.vpp is None or layout.micro_batches is None:
        return not_measured(
            f"pipeline layout unknown: {', '.join(layout.missing)}",
            f"Give it: --set {' '.join(f'{name}=N' for name in layout.missing)}",
            layout,
        )
    pipelines, source, stages = find_pipelines(ranks, facts, layout.pp)
    sizes = Sizes(
        pp=layout.pp,
        vpp=layout.vpp,
        micro_batches=layout.micro_batches,
        sources={**layout.sources, **({"stages": source} if source else {})},
        notes=layout.notes,
    )
    from perfdoc.analyzers.pipeline.windows import fastest_by_bytes, find_windows

    fastest = fastest_by_bytes(usable)
    windows: list[Window] = []
    apart = Apart(stages_ns=0, neighbours_ns=0)
    for members in pipelines:
        found = _apart(ranks, members, common, sizes.vpp)
        if found is not None:
            own_clock = len({ranks[i].clock for i in members}) == 1
            windows += find_windows(ranks, members, None if own_clock else common, found.stages_ns, fastest)
            apart = apart.or_more(found)
    # Messages check the alignment.
    wrong = max((w.impossible_ns for w in windows), default=0)
    if windows:
        return _of_windows(ranks, windows, sizes, apart.or_more(Apart(stages_ns=wrong, neighbours_ns=wrong)))
    alone = (
        "the stages are in captures whose clocks were not compared"
        if pipelines
        else "not all stages of a pipeline were captured, or it is not known which ranks they are"
    )
    named = dict(sizes.sources)
    for position, rank in enumerate(ranks):
        if position not in stages and (stage := stage_by_warm_up(rank, layout)) is not None:
            stages[position] = stage
            named["stages"] = "passes before the first backward"
    notes = (*sizes.notes, f"each rank alone: {alone}")
    return _of_ranks(ranks, stages, fastest, replace(sizes, sources=named, notes=notes))


@dataclass(frozen=True, kw_only=True)
class Apart:
    """How far clocks may be apart."""

    stages_ns: int
    """Of any two stages of a pipeline."""
    neighbours_ns: int
    """Of two stages that exchange messages."""

    def or_more(self, other: Apart) -> Apart:
        """The larger of each."""
        return Apart(
            stages_ns=max(self.stages_ns, other.stages_ns),
            neighbours_ns=max(self.neighbours_ns, other.neighbours_ns),
        )


def _apart(ranks: Sequence[PipelineRank], at: Positions, common: CommonTime | None, vpp: int) -> Apart | None:
    """How far the stages of a pipeline are apart; None where their clocks were not compared."""
    if len({ranks[i].clock for i in at}) == 1:
        return Apart(stages_ns=0, neighbours_ns=0)
    stages = None if common is None else common.resolution_between(at)
    if common is None or stages is None:
        return None
    # With several chunks the last stage sends to the first one.
    pairs = [*pairwise(at), *([(at[-1], at[0])] if vpp > 1 else [])]
    return Apart(
        stages_ns=stages, neighbours_ns=max(common.resolution_between(pair) or stages for pair in pairs)
    )


def _of_windows(
    ranks: Sequence[PipelineRank], windows: Sequence[Window], sizes: Sizes, apart: Apart
) -> PipelineAnalysis:
    sums: dict[int, RowSums] = {}
    for window in windows:
        own = sum(window.own_ns(s) for s in range(sizes.pp))
        ideal = sizes.ideal_ns(own, sizes.pp)
        # Slow messages may take over the critical path from compute: then they also fill the bubble, and
        # only what they add to it is theirs.
        beyond = max(0, sum(window.idle_ns) // sizes.pp - ideal)
        transfer = min(window.path.transfer_ns, beyond)
        handover = min(window.path.handover_ns, beyond - transfer)
        for stage, position in enumerate(window.positions):
            sums.setdefault(position, RowSums(stage=stage)).add(
                split_idle(
                    idle_ns=window.idle_ns[stage], ideal_ns=ideal, transfer_ns=transfer, handover_ns=handover
                ),
                window_ns=window.duration_ns,
                step_ns=window.step_ns[stage],
                compute_ns=window.compute_ns[stage],
                path_ns=window.path.own_ns[stage],
                mean_own_ns=own / sizes.pp,
            )
    messages = sum(w.messages for w in windows)
    return measured(
        ranks,
        sums,
        sizes,
        scope="job",
        pipelines=len({w.positions for w in windows}),
        certainty=Certainty(
            idle_ns=2 * apart.stages_ns,
            # Who came last to a message, and when, is known no better than the clocks are.
            transfer_ns=apart.neighbours_ns * max(w.path.messages for w in windows),
            matched_frac=sum(w.matched for w in windows) / messages if messages else None,
        ),
    )


def _of_ranks(
    ranks: Sequence[PipelineRank], stages: Mapping[int, int], fastest: Mapping[int, int], sizes: Sizes
) -> PipelineAnalysis:
    """Each rank without the others: the wait for the first message is in it, what follows its last is not."""
    from perfdoc.analyzers.pipeline.windows import empty_ns

    sums: dict[int, RowSums] = {}
    for position, rank in enumerate(ranks):
        if rank.state != "measured":
            continue
        m = rank.messages
        sums[position] = RowSums(stage=stages.get(position))
        for i in np.flatnonzero(rank.phase_start_ns >= 0).tolist():
            rows = np.flatnonzero(rank.message_step == i)
            start, end = int(rank.phase_start_ns[i]), int(rank.phase_end_ns[i])
            first = min(start, int(m.start_ns[rows].min(initial=start)))
            last = max(end, int(m.end_ns[rows].max(initial=end)))
            idle = int(rank.idle_ns[i] + empty_ns(rank, first, start) + empty_ns(rank, end, last))
            waits = zip((m.end_ns - m.wait_ns)[rows].tolist(), m.bytes[rows].tolist(), strict=True)
            sums[position].add(
                split_idle(
                    idle_ns=idle,
                    ideal_ns=sizes.ideal_ns(last - first - idle, 1),
                    transfer_ns=sum(min(waited, fastest.get(size, waited)) for waited, size in waits),
                    handover_ns=int((m.gap_before_ns + m.gap_after_ns)[rows].sum()),
                ),
                window_ns=last - first,
                step_ns=int(rank.step_end_ns[i] - rank.step_start_ns[i]),
                compute_ns=int(rank.compute_ns[i]),
            )
    return measured(ranks, sums, sizes, scope="rank", certainty=Certainty())
