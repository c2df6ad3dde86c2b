"""Communication whose other members are in no capture: the wait for them is no transfer to be shortened.

A collective's kernel runs from its own rank's arrival, so that it also lasts while a late rank is waited for.
One of which all members are here is known to transfer for as long as the shortest of them took. Of another
the quick ones of its size on the same stream tell it: what it takes beyond is taken for waiting. One
of a rare size waited where it took longer than the quick ones of the next larger size; it then gets its share
of their time. The late rank is late whatever becomes of the message, so changes are tried on the step without
those waits. Where every message waits alike (for a rank that is always late) nothing tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt

_QUICK_PERCENTILE = 10
_FEWEST = 4
"""Of one size: fewer do not tell which are quick."""
ASSUMED = "waits for ranks whose captures are not here stay as they were, beside what is gained"


@dataclass(frozen=True, kw_only=True)
class Unwaited:
    """A window to predict from."""

    rebuilt: Rebuilt
    length_ns: int
    """Of its replay."""


def without_waits(rebuilt: Rebuilt) -> Unwaited | None:
    """The window so; None where there is no such wait."""
    waits_ns = _waits_ns(rebuilt)
    if not waits_ns.any():
        return None
    graph = replace(rebuilt.graph, duration_ns=rebuilt.graph.duration_ns - waits_ns)
    made = replace(rebuilt, graph=graph)
    return Unwaited(rebuilt=made, length_ns=made.span(schedule(graph).end_ns))


def _waits_ns(rebuilt: Rebuilt) -> I64:
    """By task: what communication that was not matched (of some ranks of a job: all of it) took beyond the
    quick ones; of GPU ranks."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    matched = np.zeros(len(rebuilt.start_ns), bool)
    # Where ranks of the job are not here, all that are may have waited for one of those.
    if (rebuilt.ranks[0].facts.world_size or 0) <= len(rebuilt.ranks):
        # Behind its own arrival is who left before the others came: it waited for nobody.
        known = np.isin(graph.kind[edges.source], (TaskKind.MEETING, TaskKind.ARRIVAL))
        matched[edges.target[known]] = True
    ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > 0) & ~rebuilt.on_host
    rows = np.flatnonzero(ours)
    found = np.zeros(len(matched), np.int64)
    if matched[rows].all():
        return found
    alike = (graph.rank, graph.resource, rebuilt.dimension, rebuilt.reduces)
    keys = np.stack([np.asarray(column, np.int64)[rows] for column in alike])
    _, which = np.unique(keys, axis=1, return_inverse=True)
    order = np.lexsort((-rebuilt.bytes[rows], which))
    rows, which = rows[order], which[order]
    size = rebuilt.bytes[rows]
    cuts = np.flatnonzero((which[1:] != which[:-1]) | (size[1:] != size[:-1])) + 1
    larger_ns, larger_bytes, before = np.inf, 1, -1
    for mine, stream in zip(np.split(rows, cuts), which[np.append(0, cuts)].tolist(), strict=True):
        took, held = graph.duration_ns[mine], int(rebuilt.bytes[mine[0]])
        if stream != before:
            larger_ns, larger_bytes, before = np.inf, 1, stream
        if len(mine) >= _FEWEST:
            larger_ns = float(np.percentile(took, _QUICK_PERCENTILE, method="lower"))
            larger_bytes = held
        waited = (took > larger_ns) & ~matched[mine]
        found[mine[waited]] = (took[waited] - larger_ns * held / larger_bytes).astype(np.int64)
    return found
