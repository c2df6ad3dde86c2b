"""From the operations of each rank to those of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.known_schedules import Pass
from perfdoc.analyzers.pipeline.operations import COMPUTE, MESSAGE, WAIT, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.simulator.recorded.absent_stages import absent_sides
from perfdoc.simulator.recorded.cells import Cell, RecordedJob
from perfdoc.simulator.recorded.meetings import Placed, partners_of, transfers, units_of, with_exchanges
from perfdoc.traces.table import F64, Bool, among


def recorded_job(
    ranks: Sequence[RankOperations], schedule: JobSchedule, matches: Matches, world_size: int | None = None
) -> RecordedJob | None:
    """Of ranks with operations; None where they have no step in common. world_size: ranks of the job, of
    which some may be missing from groups of unknown size."""
    names = [set(r.step_names) for r in ranks]
    shared = [n for n in ranks[0].step_names if all(n in of for of in names)]
    if not shared or any(len(of) < len(r.step_names) for of, r in zip(names, ranks, strict=True)):
        return None
    columns = [np.array([r.step_names.index(n) for n in shared]) for r in ranks]
    cells: list[Cell] = []
    times: list[tuple[F64, F64, F64]] = []
    cell_of: dict[tuple[int, int], int] = {}
    captured = {r.rank for r in ranks}
    none = np.zeros(len(shared))
    stretches: dict[int, tuple[Bool, F64]] = {}
    for member, (rank, steps) in enumerate(zip(ranks, columns, strict=True)):
        of_rank = schedule.ranks[member] if schedule.ranks else None
        needs = None if of_rank is None else of_rank.needs
        # Beside work a pass waits for what it needs, whatever stood still in the recorded steps.
        beside = max(needs, default=-1) if needs else -1
        waited = {message for of in (needs or {}).values() for message in of}
        missing = [tuple(r for r in group.ranks if r not in captured) for group in rank.groups]
        for i, kind in enumerate(rank.kind.tolist()):
            if kind == COMPUTE:
                passes = of_rank.passes.get(i, ()) if of_rank is not None else ()
                for message in needs.get(i, ()) if needs else ():
                    cells.append(Cell(member=member, kind="wait", waits_for=cell_of[member, message]))
                    times.append((none, none, none))
                for one, of_part, of_stretches in _parts(rank, i, passes, steps):
                    if len(of_stretches):
                        takes = rank.stretches.takes_ns[np.ix_(of_stretches, steps)].astype(np.float64)
                        stretches[len(cells)] = rank.stretches.is_experts[of_stretches], takes
                    cells.append(Cell(member=member, kind=_kind(one), passes=one, place=i))
                    times.append(of_part)
                continue
            if kind == WAIT:
                if int(rank.of[i]) in waited or (i < beside and rank.kind[rank.of[i]] == MESSAGE):
                    continue
                cells.append(Cell(member=member, kind="wait", waits_for=cell_of[member, int(rank.of[i])]))
                times.append((none, none, none))
                continue
            cell_of[member, i] = len(cells)
            cells.append(
                Cell(
                    member=member,
                    kind="messages" if kind == MESSAGE else _name(rank, i),
                    lane=int(rank.lane[i]),
                    bytes=int(rank.bytes[i]),
                    is_send=rank.operation[i] == "send",
                    is_awaited=bool(rank.is_awaited[i]) and not (kind == MESSAGE and i < beside),
                    group_size=0 if kind == MESSAGE else max(int(rank.group_size[i]), 0),
                    missing=missing[rank.group[i]] if kind != MESSAGE and rank.group[i] >= 0 else (),
                )
            )
            times.append((rank.duration_ns[i, steps].astype(np.float64), none, none))
    lasts, computes, shares = (np.array(column) for column in zip(*times, strict=True))
    where = {(m, int(ranks[m].row[i, columns[m][0]])): c for (m, i), c in cell_of.items()}
    placed = Placed(cell_of=cell_of, where=where)
    partners = partners_of(cells, lasts, schedule, matches, placed)
    lonely = absent_sides(schedule, cell_of, captured)
    met = transfers(cells, lasts, partners, lonely.keys())
    for c, cell in enumerate(cells):
        if cell.lane >= 0:
            others = partners.get(c, frozenset({c}))
            all_of_them = cell.group_size or (0 if cell.kind == "messages" else world_size or 0)
            whole = len(others) > 1 and len(others) >= all_of_them
            whole = whole and not others & lonely.keys()
            cells[c] = replace(cell, partners=others, is_whole=whole, missing=lonely.get(c, cell.missing))
    stage = [0 if s is None else s.stage for s in schedule.ranks] or [0] * len(ranks)
    replica = [m if s is None else s.pipeline for m, s in enumerate(schedule.ranks)]
    units, share_experts, data = units_of(matches, placed, len(ranks), piped=bool(schedule.ranks))
    ends_of = ((r.stretches.lasts_ns, of_rank) for r, of_rank in zip(ranks, columns, strict=True))
    lasts_of = [lasts[:, steps] if len(lasts) else lasts for lasts, steps in ends_of]
    units, several = with_exchanges(units, lasts_of, stage)
    measured = np.array([r.step_ns[s] for r, s in zip(ranks, columns, strict=True)])
    ends = [(r.start_ns + r.duration_ns).max(axis=0) - r.start_ns.min(axis=0) for r in ranks]
    spans = [of_rank[s] for of_rank, s in zip(ends, columns, strict=True)]
    return RecordedJob(
        cells=tuple(cells),
        takes=met,
        lasts=lasts,
        computes=computes,
        shares=shares,
        stage=tuple(stage),
        replica=tuple(replica or range(len(ranks))),
        step_ns=measured[measured.mean(axis=1).argmax()].astype(np.float64),
        behind_ns=np.maximum(measured - spans, 0).astype(np.float64),
        span_ns=np.max(spans, axis=0).astype(np.float64),
        step_names=tuple(shared),
        units=tuple(units),
        several=frozenset(several),
        shares_experts=frozenset(share_experts),
        data=tuple(data),
        stretches=stretches,
        pp=schedule.pp or 1,
    )


def _kind(passes: tuple[Pass, ...]) -> str:
    kinds = {"forward" if is_forward else "backward" for is_forward, _ in passes}
    return " and ".join(sorted(kinds, reverse=True)) or "compute"


def _name(rank: RankOperations, i: int) -> str:
    dimension = DIMENSIONS[int(rank.dimension[i])]
    words = rank.operation[i].replace("_", "-")
    return f"{dimension.upper()} {words}" if dimension not in ("unknown", "other") else words


def with_gaps(job: RecordedJob, ranks: Sequence[RankOperations]) -> RecordedJob | None:
    """With late launches in its work from one collective to the next; None where not all wait in each."""
    takes = job.takes.copy()
    for rank, mine in zip(ranks, job.of_member, strict=True):
        rows = [c for c in mine if job.cells[c].is_compute]
        at, end = np.flatnonzero(rank.kind == COMPUTE), rank.start_ns + rank.duration_ns
        if among(rank.kind, (MESSAGE, WAIT)).any() or not rank.is_awaited.all() or len(rows) != len(at):
            return None
        steps = [rank.step_names.index(name) for name in job.step_names]
        since = np.where(at[:, None] > 0, end[at - 1], rank.start_ns[at])
        until = np.append(rank.start_ns, end[-1:], axis=0)[at + 1]
        takes[rows] = np.maximum(until - since, rank.duration_ns[at])[:, steps]
    return replace(job, takes=takes)


def _parts(
    rank: RankOperations, i: int, passes: tuple[Pass, ...], steps: NDArray[np.int64]
) -> list[tuple[tuple[Pass, ...], tuple[F64, F64, F64], NDArray[np.int64]]]:
    """(passes, (duration, busy, shared), its stretches) of a compute operation: two where one pass follows
    another in it and it is known where."""
    lasts, busy, shared = (
        m[i, steps].astype(np.float64) for m in (rank.duration_ns, rank.busy_ns, rank.shared_ns)
    )
    cut = rank.split_ns[i, steps].astype(np.float64)
    rows = np.flatnonzero(rank.stretches.of == i)
    if len(passes) != 2 or (cut < 0).any():
        return [(passes, (lasts, busy, shared), rows)]
    first = np.minimum(cut, lasts)
    matrices = rank.busy_before_ns, rank.shared_before_ns
    busy_before, shared_before = (m[i, steps].astype(np.float64) for m in matrices)
    # Both of the first step; by the middle of a stretch, for launches leave a gap before its work.
    middle = rank.stretches.at_ns[rows] + rank.stretches.takes_ns[rows, :1].sum(axis=1) // 2
    before = middle < (rank.split_ns[i, 0] if rank.split_ns[i, 0] >= 0 else np.median(first))
    return [
        (passes[:1], (first, busy_before, shared_before), rows[before]),
        (passes[1:], (lasts - first, busy - busy_before, shared - shared_before), rows[~before]),
    ]
