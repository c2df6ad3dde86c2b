"""Pairs of ranks whose messages, and groups whose collectives, take longer than the same of others once all
have come: a slow link. No clock is needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfdoc.results.figures import brief, size
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import NEARLY_ALWAYS, Effect
from perfdoc.traces.table import F64

SLOW = 2.0
"""Times as long as its peers."""
MAX_SLOW = 4
"""Links that are looked at one by one, the slowest of a kind."""

Who = tuple[int, ...]
"""Positions of the ranks that meet."""


def slow_links(job: RecordedJob) -> list[Effect]:
    """Links that are slower than those between the same stages, else than all of their kind; of the same
    number of bytes and ranks."""
    who: dict[frozenset[int], Who] = {}
    where: dict[int, Who] = {}
    alike: dict[tuple[str, int, int], dict[Who, list[int]]] = defaultdict(lambda: defaultdict(list))
    for c, cell in enumerate(job.cells):
        if cell.lane >= 0 and cell.is_whole and len(cell.partners) > 1:
            if cell.partners not in who:
                who[cell.partners] = tuple(sorted({job.cells[o].member for o in cell.partners}))
            ranks = where[c] = who[cell.partners]
            alike[cell.kind, cell.bytes, len(ranks)][ranks].append(c)
    found: dict[Who, Effect] = {}
    for (kind, *_), cells in alike.items():
        lasts = {ranks: np.median(job.takes[rows], axis=0) for ranks, rows in cells.items()}
        slowest = sorted(lasts, key=lambda ranks: -float(lasts[ranks].mean()))[:MAX_SLOW]
        for ranks in slowest if len(lasts) > 1 else ():
            effect = _effect(job, ranks, cells[ranks], lasts)
            if effect is None:
                continue
            if kind == "messages":  # batches with others too are as slow
                rows = [c for c, of in where.items() if job.cells[c].kind == kind and {*ranks} <= {*of}]
                effect = replace(effect, links=((rows, effect.links[0][1]),))
            if ranks in found:
                before = found[ranks]
                operations = tuple(dict.fromkeys(before.operations + effect.operations))
                effect = replace(before, operations=operations, links=before.links + effect.links)
            found[ranks] = effect
    return list(found.values())


def _effect(job: RecordedJob, ranks: Who, rows: list[int], lasts: Mapping[Who, F64]) -> Effect | None:
    """lasts: by link and step, of all that are alike."""
    stages = [job.stage[m] for m in ranks]
    others = {other: ns for other, ns in lasts.items() if other != ranks}
    same = [ns for other, ns in others.items() if [job.stage[m] for m in other] == stages]
    peers = np.array(same or list(others.values()))
    usual = np.quantile(peers, 0.5, axis=0, method="lower")
    over = lasts[ranks] / np.maximum(usual, 1.0)
    ratio = float(np.median(over))
    often = float((over > 1 + (ratio - 1) / 2).mean())
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
