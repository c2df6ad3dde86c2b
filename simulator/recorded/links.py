"""Pairs of ranks whose messages, and groups whose collectives, take longer than the same of others once all
have come: a slow link. No clock is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.steps.scatter import NEARLY_ALWAYS
from perfdoc.results.figures import brief, size
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import Effect
from perfdoc.simulator.recorded.peers import gone_through_together
from perfdoc.simulator.recorded.work import Link, usual_of
from perfdoc.traces.table import F64

SLOW = 2.0
"""Times as long as its peers."""
MAX_SLOW = 4
"""Links that are looked at one by one, the slowest of a kind."""

Who: TypeAlias = tuple[int, ...]
"""Positions of the ranks that meet."""
Alike: TypeAlias = dict[tuple[str, int, int], dict[Who, list[int]]]
"""Cells by kind, bytes and number of ranks, then by ranks."""


def slow_links(job: RecordedJob) -> list[Effect]:
    """Links that are slower than those between the same stages, else than all of their kind; of the same
    number of bytes and ranks."""
    alike = _alike(job)
    found: dict[Who, list[Effect]] = defaultdict(list)
    for cells in alike.values():
        lasts = {ranks: np.median(job.takes[rows], axis=0) for ranks, rows in cells.items()}
        slowest = sorted(lasts, key=lambda ranks: -float(lasts[ranks].mean()))[:MAX_SLOW]
        for ranks in slowest if len(lasts) > 1 else ():
            if (effect := _effect(job, ranks, cells[ranks], lasts)) is not None:
                found[ranks].append(effect)
    return [_of_all_sizes(job, ranks, effects, alike) for ranks, effects in found.items()]


def _alike(job: RecordedJob) -> Alike:
    who: dict[frozenset[int], Who] = {}
    found: Alike = defaultdict(lambda: defaultdict(list))
    for c, cell in enumerate(job.cells):
        if cell.lane >= 0 and cell.is_whole and len(cell.partners) > 1:
            ranks = who.get(cell.partners) or tuple(sorted({job.cells[o].member for o in cell.partners}))
            who[cell.partners] = ranks
            found[cell.kind, cell.bytes, len(ranks)][ranks].append(c)
    return found


def _of_all_sizes(job: RecordedJob, ranks: Who, effects: Sequence[Effect], alike: Alike) -> Effect:
    """One link's effects as one, in the words of the costliest size; batches with others too are as slow."""
    costs = [sum(float((job.takes[rows] - usual).sum()) for rows, usual in e.links) for e in effects]
    most = effects[int(np.argmax(costs))]
    links = [link for e in effects for link in e.links]
    for (kind, *_), cells in alike.items() if "messages" in most.operations else ():
        mine = [c for of, rows in cells.items() if {*ranks} < {*of} for c in rows]
        if kind == "messages" and mine:
            others = [
                np.median(job.takes[rows], axis=0) for of, rows in cells.items() if not {*ranks} <= {*of}
            ]
            links.append((mine, usual_of(others) if others else job.takes[mine] / most.ratio))
    operations = tuple(dict.fromkeys(kind for e in effects for kind in e.operations))
    waits = list(_waits_of_mates(job, ranks))
    # Where who is late is told by ends alone, no cure saves more than all that its communication is longer.
    excess = _excess_ns(job, ranks, links) if waits else 0.0
    return replace(most, operations=operations, links=(*links, *waits), excess_ns=excess)


def _excess_ns(job: RecordedJob, ranks: Who, links: Iterable[Link]) -> float:
    """Of a step, on the rank that has most of it."""
    found = np.zeros((len(ranks), job.takes.shape[1]))
    for rows, usual in links:
        longer = np.maximum(job.takes[rows] - usual, 0.0)
        for at, rank in enumerate(ranks):
            found[at] += longer[[job.cells[c].member == rank for c in rows]].sum(axis=0)
    return float(found.mean(axis=1).max())


def _waits_of_mates(job: RecordedJob, ranks: Who) -> Iterator[Link]:
    """Ranks that go through their passes with one of the link, and come before it from quicker links of their
    own, wait for it inside a pass: without that it takes as long as it does the quickest of them."""
    for rows in gone_through_together(job):
        mates = [c for c in rows if job.cells[c].member not in ranks]
        if 0 < len(mates) < len(rows):
            own = job.takes[mates] - job.shares[mates]
            yield mates, np.maximum(job.takes[rows].min(axis=0), own)


def _effect(job: RecordedJob, ranks: Who, rows: list[int], lasts: Mapping[Who, F64]) -> Effect | None:
    """lasts: by link and step, of all that are alike."""
    stages = [job.stage[m] for m in ranks]
    others = {other: ns for other, ns in lasts.items() if other != ranks}
    same = [ns for other, ns in others.items() if [job.stage[m] for m in other] == stages]
    peers = same or list(others.values())
    usual = usual_of(peers)
    over = lasts[ranks] / np.maximum(usual, 1.0)
    ratio = float(np.median(over))
    often = float((over > min(SLOW, 1 + (ratio - 1) / 2)).mean())
    if ratio < SLOW or often < NEARLY_ALWAYS:
        return None
    cell = job.cells[rows[0]]
    sized = f" for {size(cell.bytes)}" if cell.bytes > 0 else ""
    among = "" if same else "; the others are between other stages, perhaps within a node"
    return Effect(
        kind="slow_link",
        members=ranks,
        ratio=ratio,
        peers=len(peers),
        recurrence_frac=often,
        note=f"{brief(float(lasts[ranks].mean()))}{sized}, theirs {brief(float(usual.mean()))}{among}",
        operations=(cell.kind,),
        links=((rows, usual),),
    )
