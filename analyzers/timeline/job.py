"""The timelines of all ranks side by side: one step for all, on one clock, in few enough segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.analyzers.timeline.rank import CODES, LIMITS, StepTimeline, track_of
from perfdoc.analyzers.timeline.segments import pool
from perfdoc.records import dataclass
from perfdoc.results.quality import MEASURED
from perfdoc.results.timeline import Timeline, TimelineRank, TimelineTrack

MAX_RANKS = 64
"""Ranks that are drawn; of more, these many spread over all of them."""
MAX_SEGMENTS = 40_000
"""Over all ranks: about 1 MB of the page."""
MAX_PASSES = 1_000
"""Passes of one rank; of more, the picture would show nothing."""
MAX_ALL_PASSES = 20_000
"""Of all ranks; of more, every second rank shows its own, or every third, and so on. Ranks that follow one
another mostly are of one stage."""


@dataclass(frozen=True, kw_only=True)
class RankInput:
    """What the timeline needs of one rank."""

    rank: int | None
    label: str
    capture: int
    """Ranks of one capture share a clock."""
    steps: Sequence[StepTimeline]
    step_names: Sequence[str]
    """Of the window, in order, as `passes.step` counts them."""
    passes: Passes


def job_timeline(ranks: Sequence[RankInput], clocks: ClockAlignment) -> Timeline:
    """The timeline of a job. clocks: in the order of `ranks`."""
    some = [i for i, r in enumerate(ranks) if r.steps]
    if not some:
        return Timeline.missing("no rank has anything in its window", "Widen the window.")
    kept = some
    if len(some) > MAX_RANKS:
        kept = [some[i] for i in np.linspace(0, len(some) - 1, MAX_RANKS).round().astype(int).tolist()]
    common = common_step([ranks[i].steps for i in kept])
    chosen = {i: next((s for s in ranks[i].steps if s.name == common), ranks[i].steps[0]) for i in kept}
    offset, aligned, several = _offsets(ranks, chosen, clocks)
    share = min(1.0, MAX_SEGMENTS / (sum(LIMITS.values()) * len(kept)))
    names = {step.name for step in chosen.values()}
    passes = [_passes(ranks[i], step) for i, step in chosen.items()]
    every = max(1, -(-sum(len(t.start_ns) for found in passes for t in found) // MAX_ALL_PASSES))
    return Timeline(
        **MEASURED,
        step=next(iter(names)) if len(names) == 1 else "",
        resolution_ns=clocks.resolution_between(kept)
        if several and len(names) == 1 and all(aligned.values())
        else None,
        ranks=[
            TimelineRank(
                rank=ranks[i].rank,
                label=ranks[i].label,
                step=step.name,
                start_ns=step.start_ns,
                duration_ns=step.end_ns - step.start_ns,
                offset_ns=offset[i],
                aligned=aligned[i],
                tracks=[*_tracks(step, share), *(passes[at] if at % every == 0 else ())],
            )
            for at, (i, step) in enumerate(chosen.items())
        ],
        left_out=len(ranks) - len(kept),
        notes=_notes(len(names), aligned, len(some) - len(kept)),
    )


def common_step(steps: Sequence[Sequence[StepTimeline]]) -> str:
    """The name of the step to draw: the one that most ranks offer, and of those the most typical, which ranks
    offer first."""
    offered: Counter[str] = Counter()
    place: Counter[str] = Counter()
    for of_rank in steps:
        for at, step in enumerate(of_rank):
            offered[step.name] += 1
            place[step.name] += at
    return min(offered, key=lambda name: (-offered[name], place[name] / offered[name], name))


def _offsets(
    ranks: Sequence[RankInput], chosen: dict[int, StepTimeline], clocks: ClockAlignment
) -> tuple[dict[int, int], dict[int, bool], bool]:
    """When each rank's step begins on the picture, whether its clock was compared with most others', and
    whether there is more than one clock."""
    part: dict[int, tuple[str, int]] = {}
    begins: dict[int, int] = {}
    for i, step in chosen.items():
        if i < len(clocks.clocks):
            part[i] = ("component", clocks.clocks[i].component)
            begins[i] = int(clocks.aligned(i, np.array([step.start_ns], np.int64))[0])
        else:
            part[i], begins[i] = ("capture", ranks[i].capture), step.start_ns
    (main, _), *_ = Counter(part.values()).most_common(1)
    first = min(begins[i] for i in chosen if part[i] == main)
    at_once = len({step.name for step in chosen.values()}) == 1
    offset = {i: begins[i] - first if part[i] == main and at_once else 0 for i in chosen}
    aligned = {i: part[i] == main for i in chosen}
    return offset, aligned, len({ranks[i].capture for i in chosen}) > 1


def _notes(steps: int, aligned: dict[int, bool], beyond: int) -> list[str]:
    notes = []
    if steps > 1:
        notes.append(
            "no step is typical of all ranks: each rank shows its own typical step from 0, so vertical "
            "alignment does not mean simultaneous"
        )
    elif not all(aligned.values()):
        apart = sum(not a for a in aligned.values())
        notes.append(
            f"the clocks of {apart:,} of {len(aligned):,} ranks were not compared with the others': their "
            "steps start at 0, so vertical alignment does not mean simultaneous"
        )
    if beyond:
        notes.append(f"{len(aligned):,} ranks are shown, spread over all; {beyond:,} are not")
    return notes


def _tracks(step: StepTimeline, share: float) -> list[TimelineTrack]:
    tracks = []
    for kind, track in step.tracks.items():
        segments = pool(track.segments, max(20, int(LIMITS[kind] * share)))
        # The commonest names come first.
        names = track.names[: max(20, int(len(track.names) * share))]
        tracks.append(track_of(kind, segments, names, step.start_ns))
    return tracks


def _passes(rank: RankInput, step: StepTimeline) -> list[TimelineTrack]:
    """Forward and backward passes of the step; their names are micro-batches."""
    names = distinct_names(rank.step_names)
    passes = rank.passes
    if step.name not in names:
        return []
    rows = np.flatnonzero(passes.step == names.index(step.name))
    if not 0 < len(rows) <= MAX_PASSES:
        return []
    batches = np.unique(passes.micro_batch[rows][passes.micro_batch[rows] >= 0])
    number = passes.micro_batch[rows]
    at = np.where(number >= 0, np.searchsorted(batches, number), -1)
    return [
        TimelineTrack(
            kind="passes",
            codes=list(CODES["passes"]),
            names=[str(b) for b in batches.tolist()],
            start_ns=(passes.start_ns[rows] - step.start_ns).tolist(),
            duration_ns=(passes.end_ns[rows] - passes.start_ns[rows]).tolist(),
            code=np.where(passes.is_forward[rows], 0, 1).tolist(),
            name=at.tolist(),
            stretches=[1] * len(rows),
            count=[1] * len(rows),
        )
    ]
