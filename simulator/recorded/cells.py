"""All ranks' operations in one list, who meets whom in them, and how long each takes once it can run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.operations import COMPUTE, MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule, Pass

F64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One operation of one rank."""

    member: int
    """Position of the rank."""
    kind: str
    """`forward`, `backward`, `forward and backward`, `compute`, `messages`, or a collective."""
    passes: tuple[Pass, ...] = ()
    """Of compute; two where they could not be told apart."""
    place: int = 0
    """Of compute outside of passes: its number on its rank."""
    lane: int = -1
    is_awaited: bool = True
    partners: frozenset[int] = frozenset()
    """Of communication: all cells that must have come, its own among them."""
    edge: tuple[int, int] | None = None
    """Of a message: the ranks (positions) that it joins, the lower first."""
    is_whole: bool = True
    """Whether all that take part were captured."""

    @property
    def is_compute(self) -> bool:
        """Whether it needs no other rank."""
        return self.lane < 0


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """Cells by rank, then in their order; matrices by cell and step, ns."""

    cells: tuple[Cell, ...]
    takes: F64
    """How long each takes once all that take part have come."""
    computes: F64
    """Of compute: how much of it kernels compute or communicate; the rest are gaps between them."""
    stage: tuple[int, ...]
    """By position; 0 for all where there is no pipeline."""
    replica: tuple[int, ...]
    """By position: which of the stage's replicas."""
    step_ns: F64
    """Measured, by step: the longest of the ranks."""

    @property
    def of_member(self) -> list[list[int]]:
        """Cells of each rank in order."""
        found: list[list[int]] = [[] for _ in self.stage]
        for i, cell in enumerate(self.cells):
            found[cell.member].append(i)
        return found


def recorded_job(
    ranks: Sequence[RankOperations], schedule: JobSchedule, matches: Matches
) -> RecordedJob | None:
    """Of ranks with operations; None where they have no step in common."""
    names = [set(r.step_names) for r in ranks]
    shared = [n for n in ranks[0].step_names if all(n in of for of in names)]
    if not shared or any(len(of) < len(r.step_names) for of, r in zip(names, ranks, strict=True)):
        return None
    columns = [np.array([r.step_names.index(n) for n in shared]) for r in ranks]
    cells: list[Cell] = []
    takes: list[F64] = []
    computes: list[F64] = []
    cell_of: dict[tuple[int, int], int] = {}
    for member, (rank, steps) in enumerate(zip(ranks, columns, strict=True)):
        of_rank = schedule.ranks[member] if schedule.ranks else None
        for i, kind in enumerate(rank.kind.tolist()):
            if kind != COMPUTE:
                cell_of[member, i] = len(cells)
                cells.append(
                    Cell(
                        member=member,
                        kind="messages" if kind == MESSAGE else _name(rank, i),
                        lane=int(rank.lane[i]),
                        is_awaited=bool(rank.is_awaited[i]),
                    )
                )
                takes.append(rank.duration_ns[i, steps].astype(np.float64))
                computes.append(np.zeros(len(steps)))
                continue
            passes = of_rank.passes.get(i, ()) if of_rank is not None else ()
            for one, part, busy in _parts(rank, i, passes, steps):
                cells.append(Cell(member=member, kind=_kind(one), passes=one, place=i))
                takes.append(part)
                computes.append(busy)
    where = {(m, int(ranks[m].row[i, columns[m][0]])): c for (m, i), c in cell_of.items()}
    partners = _by_message(schedule, cell_of) | _by_collective(matches, where)
    stage = [0 if s is None else s.stage for s in schedule.ranks] or [0] * len(ranks)
    replica = [m if s is None else s.pipeline for m, s in enumerate(schedule.ranks)] or list(
        range(len(ranks))
    )
    lasts = np.array(takes)
    met = lasts.copy()
    for c, others in partners.items():
        edge = sorted({cells[o].member for o in others})
        cells[c] = replace(
            cells[c],
            partners=others,
            edge=(edge[0], edge[1]) if cells[c].kind == "messages" and len(edge) == 2 else None,
        )
        # Who comes last waits for nobody: the shortest is the transfer. It needs no common clock.
        met[c] = lasts[sorted(others)].min(axis=0)
    # Not so where the other side takes part in something else too: then what the others of its kind take.
    closed = {c for c, others in partners.items() if all(partners[o] == others for o in others)}
    for kind in {cells[c].kind for c in partners.keys() - closed}:
        known = [c for c in closed if cells[c].kind == kind]
        mixed = [c for c in partners.keys() - closed if cells[c].kind == kind]
        usual = np.median(met[known]) if known else np.quantile(met[mixed], 0.1)
        met[mixed] = np.minimum(met[mixed], usual)
    for c, cell in enumerate(cells):
        if not cell.is_compute and len(cell.partners) < 2:
            # Those that it waited for are not here: what it takes at its fastest, others' lateness aside.
            met[c] = np.minimum(lasts[c], np.quantile(lasts[c], 0.1))
            cells[c] = replace(cell, partners=frozenset({c}), is_whole=False)
    return RecordedJob(
        cells=tuple(cells),
        takes=met,
        computes=np.array(computes),
        stage=tuple(stage),
        replica=tuple(replica),
        step_ns=np.max([r.step_ns[s] for r, s in zip(ranks, columns, strict=True)], axis=0).astype(
            np.float64
        ),
    )


def _kind(passes: tuple[Pass, ...]) -> str:
    if not passes:
        return "compute"
    if len(passes) > 1:
        return "forward and backward"
    return "forward" if passes[0][0] else "backward"


def _name(rank: RankOperations, i: int) -> str:
    dimension = DIMENSIONS[int(rank.dimension[i])]
    words = rank.operation[i].replace("_", "-")
    return f"{dimension.upper()} {words}" if dimension not in ("unknown", "other") else words


def _parts(
    rank: RankOperations, i: int, passes: tuple[Pass, ...], steps: NDArray[np.int64]
) -> list[tuple[tuple[Pass, ...], F64, F64]]:
    """(passes, duration, busy) of a compute operation: two where one pass follows another in it and it is
    known where."""
    lasts, busy = (m[i, steps].astype(np.float64) for m in (rank.duration_ns, rank.busy_ns))
    cut = rank.split_ns[i, steps].astype(np.float64)
    if len(passes) != 2 or (cut < 0).any():
        return [(passes, lasts, busy)]
    first = np.minimum(cut, lasts)
    share = np.divide(first, lasts, out=np.zeros_like(lasts), where=lasts > 0)
    return [(passes[:1], first, busy * share), (passes[1:], lasts - first, busy * (1 - share))]


def _by_message(schedule: JobSchedule, cell_of: dict[tuple[int, int], int]) -> dict[int, frozenset[int]]:
    ends: dict[tuple[object, ...], set[int]] = defaultdict(set)
    keys: dict[int, list[tuple[object, ...]]] = {}
    for member, rank in enumerate(schedule.ranks):
        if rank is None:
            continue
        for i, carried in rank.messages.items():
            cell = cell_of[member, i]
            keys[cell] = [(rank.pipeline, *key) for key in carried]
            for key in keys[cell]:
                ends[key].add(cell)
    return {cell: frozenset({cell}).union(*(ends[k] for k in mine)) for cell, mine in keys.items()}


def _by_collective(matches: Matches, where: dict[tuple[int, int], int]) -> dict[int, frozenset[int]]:
    met: dict[int, set[int]] = defaultdict(set)
    columns = zip(matches.member.tolist(), matches.row.tolist(), matches.collective.tolist(), strict=True)
    for member, row, collective in columns:
        if (cell := where.get((member, row))) is not None:
            met[collective].add(cell)
    return {cell: frozenset(cells) for cells in met.values() for cell in cells if len(cells) > 1}
