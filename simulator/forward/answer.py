"""The exact answer of one rank: every nanosecond of its window, from the simulated times.

No analyzer is asked. The definitions are those of docs/ledger.md; who waited for what, and of which group a
communication is, is known and not inferred.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfdoc.records import dataclass
from perfdoc.simulator.captures.nsys import DEFAULT_STREAM
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.simulation import SimulatedRank
from perfdoc.simulator.forward.tape import OpKind
from perfdoc.traces.table import Bool

_NEVER = np.iinfo(np.int64).max
_SHORT_GAP_NS = 20_000
"""A longer gap with work queued would be unexplained; none is simulated."""


@dataclass(frozen=True, kw_only=True)
class RankLedger:
    """A window's partition, ns; true time."""

    window_start_ns: int
    window_end_ns: int
    step_start_ns: tuple[int, ...]
    compute_ns: int
    exposed_comm_ns: Mapping[str, int]
    exposed_memcpy_ns: int
    idle_ns: Mapping[str, int]
    comm_ns: Mapping[str, int]
    """By dimension, the union of its kernels: hidden and exposed."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A rank's device work of all steps in columns, in launch order."""

    start_ns: I64
    end_ns: I64
    stream: I64
    kind: I64
    dimension: NDArray[np.object_]
    call_ns: I64
    returned_ns: I64
    awaited: I64
    """Pairs: (row that waits, row that is awaited)."""


def rank_ledger(simulated: SimulatedRank) -> RankLedger:
    """Account for a rank's window, from its first activity to its last."""
    rows = _rows(simulated)
    begin, finish = int(rows.start_ns.min()), int(rows.end_ns.max())
    computes, copies = rows.kind == OpKind.COMPUTE, rows.kind == OpKind.COPY
    communicates = rows.kind == OpKind.COMMUNICATION
    names = sorted(set(rows.dimension[communicates].tolist()))
    since = _awaited_since(rows)
    cuts = np.unique(np.concatenate([rows.start_ns, rows.end_ns, since[(since > begin) & (since < finish)]]))
    length = np.diff(cuts)
    in_compute = _covered(cuts, rows.start_ns[computes], rows.end_ns[computes])
    in_copy = _covered(cuts, rows.start_ns[copies], rows.end_ns[copies])
    by_name = {
        n: _covered(cuts, rows.start_ns[mine], rows.end_ns[mine])
        for n in names
        for mine in [communicates & (rows.dimension == n)]
    }
    present = np.sum([by_name[n] for n in names], axis=0) if names else np.zeros(len(length), int)
    exposed = dict.fromkeys(names, 0)
    for n in names:
        exposed[n] += int(length[by_name[n] & ~in_compute & (present == 1)].sum())
    several = np.flatnonzero((present > 1) & ~in_compute)
    for n, ns in zip(_owners(rows, since, cuts[several], cuts[several + 1]), length[several], strict=True):
        exposed[n] += int(ns)
    return RankLedger(
        window_start_ns=begin,
        window_end_ns=finish,
        step_start_ns=tuple(int(s) for s in simulated.start_ns[:, 0]),
        compute_ns=int(length[in_compute].sum()),
        exposed_comm_ns={n: ns for n, ns in exposed.items() if ns},
        exposed_memcpy_ns=int(length[in_copy & ~in_compute & (present == 0)].sum()),
        idle_ns=_idle(simulated, rows, cuts, in_compute | in_copy | (present > 0)),
        comm_ns={n: int(length[by_name[n]].sum()) for n in names},
    )


def _rows(simulated: SimulatedRank) -> _Rows:
    tape, steps = simulated.work.tape, len(simulated.start_ns)
    n = len(tape.ops)
    segment = np.array([o.segment for o in tape.ops])
    call, back = (np.array([getattr(o, name) for o in tape.ops]) for name in ("call_ns", "returned_ns"))
    waits = np.array(tape.waits, np.int64).reshape(-1, 2)
    groups = simulated.work.groups
    names = np.array([groups[o.group].dimension if o.group else "" for o in tape.ops], object)
    return _Rows(
        start_ns=simulated.start_ns.ravel(),
        end_ns=simulated.end_ns.ravel(),
        stream=np.tile([o.stream for o in tape.ops], steps),
        kind=np.tile([int(o.kind) for o in tape.ops], steps),
        dimension=np.tile(names, steps),
        call_ns=np.concatenate([simulated.host_ns(s, segment, call) for s in range(steps)]),
        returned_ns=np.concatenate(
            [simulated.host_ns(s, segment, call) + (back - call) for s in range(steps)]
        ),
        awaited=np.concatenate([s * n + waits for s in range(steps)]),
    )


def _covered(cuts: I64, start_ns: I64, end_ns: I64) -> Bool:
    """For each stretch between two cuts: whether any of these intervals covers it."""
    change = np.zeros(len(cuts), np.int64)
    np.add.at(change, np.searchsorted(cuts, start_ns), 1)
    np.add.at(change, np.searchsorted(cuts, end_ns), -1)
    return np.cumsum(change)[:-1] > 0


def _awaited_since(rows: _Rows) -> I64:
    """By row: since when a computation that was launched, and whose stream was free, waited for it.

    What runs before an awaited communication on its stream is awaited with it.
    """
    since = np.full(len(rows.start_ns), _NEVER)
    on_compute = np.flatnonzero(rows.stream == DEFAULT_STREAM)
    free = np.zeros(len(rows.start_ns), np.int64)
    free[on_compute[1:]] = np.maximum.accumulate(rows.end_ns[on_compute])[:-1]
    waiting, awaited = rows.awaited.T
    real = (rows.kind[waiting] == OpKind.COMPUTE) & (rows.kind[awaited] == OpKind.COMMUNICATION)
    waiting, awaited = waiting[real], awaited[real]
    np.minimum.at(since, awaited, np.maximum(rows.call_ns[waiting], free[waiting]))
    for stream in np.unique(rows.stream):
        mine = np.flatnonzero(rows.stream == stream)
        since[mine] = np.minimum.accumulate(since[mine][::-1])[::-1]
    return since


def _owners(rows: _Rows, since: I64, start_ns: I64, end_ns: I64) -> list[str]:
    """Whose each stretch is in which several dimensions are exposed: what is awaited goes first, then what
    ends last, then what started first. A stream runs one communication at a time."""
    if not len(start_ns):
        return []
    candidates = []
    for stream in np.unique(rows.stream[rows.kind == OpKind.COMMUNICATION]):
        mine = np.flatnonzero(rows.stream == stream)
        row = mine[np.maximum(np.searchsorted(rows.start_ns[mine], start_ns, "right") - 1, 0)]
        runs = (rows.start_ns[row] <= start_ns) & (rows.end_ns[row] >= end_ns)
        candidates.append(np.where(runs, row, -1))
    table = np.array(candidates)
    key = np.array([-rows.start_ns[table], rows.end_ns[table], since[table] <= start_ns, table >= 0])
    best = np.lexsort(key, axis=0)[-1]
    found = table[best, np.arange(len(start_ns))]
    assert (found >= 0).all()
    return [str(d) for d in rows.dimension[found]]


def _idle(simulated: SimulatedRank, rows: _Rows, cuts: I64, busy: Bool) -> dict[str, int]:
    """Nothing ran: the host's until the call that launches what follows returns, else the device's."""
    edge = np.diff(np.concatenate([[True], busy, [True]]).astype(np.int8))
    starts, ends = cuts[np.flatnonzero(edge == -1)], cuts[np.flatnonzero(edge == 1)]
    order = np.argsort(rows.start_ns, kind="stable")
    follow = order[np.searchsorted(rows.start_ns[order], ends, "left")]
    by_end = np.argsort(rows.end_ns, kind="stable")
    before = by_end[np.searchsorted(rows.end_ns[by_end], starts, "right") - 1]
    host_end = np.clip(rows.returned_ns[follow], starts, ends)
    rest = ends - host_end
    assert (rest <= _SHORT_GAP_NS).all(), int(rest.max())
    waited = (host_end == starts) & (rows.stream[before] != rows.stream[follow])
    found = {"dependency": int(rest[waited].sum()), "launch_latency": int(rest[~waited].sum())}
    left = host_end - starts
    for cause in ("gc", "data"):
        inside = np.zeros(len(starts), np.int64)
        for step, pauses in enumerate(simulated.work.pauses):
            for at, pause in enumerate(pauses):
                if pause.name.startswith(f"perfdoc.{cause}"):
                    a, b = pause_span(simulated, step, at)
                    inside += np.maximum(np.minimum(host_end, b) - np.maximum(starts, a), 0)
        found[cause] = int(inside.sum())
        left = left - inside
    found["host"] = int(left.sum())
    return {cause: ns for cause, ns in found.items() if ns}


PAUSE_MARGIN_NS = 500
"""Between a pause's bounds and the range that shows it."""


def pause_span(simulated: SimulatedRank, step: int, number: int) -> tuple[int, int]:
    """True time of the range of a pause."""
    pauses = simulated.work.pauses[step]
    pause = pauses[number]
    earlier = sum(
        p.takes_ns for p in pauses[:number] if p.segment == pause.segment and p.at_ns <= pause.at_ns
    )
    begin = int(simulated.segment_ns[step][pause.segment]) + pause.at_ns + earlier
    return begin + PAUSE_MARGIN_NS, begin + pause.takes_ns - PAUSE_MARGIN_NS
