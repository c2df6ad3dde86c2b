"""Who meets whom in communication, by messages, matched collectives or else structure, and how long it takes
once all have come."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS, UNKNOWN_DIMENSION
from perfdoc.analyzers.pipeline.passes import INSIDE_A_PASS
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.records import dataclass
from perfdoc.simulator.recorded.cells import Cell
from perfdoc.traces.table import F64, median

HALF = 0.5
"""Of the waiting that one grouping leaves unexplained: with less another one is taken."""
SAME_FRAC = 0.01
"""Of the time between exchanges: ends that differ less are of one exchange."""
COMPARED = 200
"""Times between exchanges, of a rank and a group: at least so many, where there are, and less than twice."""
LOOKS, ROUGH = (24, 4), 4
"""Ways to pick places at which ranks that are compared are about as long, and places of each; how much
farther apart than ends of one exchange. With times measured to 0.5 % fewer looks miss one rank in sixty."""
FASTEST = 0.1
"""Quantile over steps: an operation at its fastest, whoever it waited for in the others."""
_SHARE_DATA = [DIMENSIONS.index(name) for name in ("tp", "cp")]

Partners = dict[int, frozenset[int]]
"""By cell all that must have come, its own among them."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where operations are among the cells."""

    cell_of: Mapping[tuple[int, int], int]
    """By position and index of the operation."""
    where: Mapping[tuple[int, int], int]
    """By position and row of the rank's CollectiveCalls."""


def partners_of(
    cells: Sequence[Cell], lasts: F64, schedule: JobSchedule, matches: Matches, placed: Placed
) -> Partners:
    """Of messages and collectives of which the other sides were captured. lasts: by cell and step."""
    partners = _by_message(schedule, placed.cell_of) | _by_collective(matches, placed.where, schedule)
    return partners | _by_structure(cells, lasts, schedule, partners.keys())


def units_of(
    matches: Matches, placed: Placed, ranks: int, *, piped: bool
) -> tuple[list[int], set[int], list[int]]:
    """(by position which unit of ranks it goes through passes with, the units that share experts, by position
    a number for ranks with the same data: they share tensors or sequences). Units meet in collectives inside
    passes, in groups of which nothing is an operation of its own."""
    unit = data = list(range(ranks))
    experts: set[int] = set()
    # What goes around a ring has been on all its ranks, message by message.
    ring = matches.dimension == DIMENSIONS.index("cp")
    synchronising = matches.is_synchronising | ring if matches.groups else np.empty(0, bool)
    collective = matches.collective
    rows = zip(matches.member.tolist(), matches.row.tolist(), strict=True)
    apart = np.zeros(len(matches.group), bool)
    apart[collective[np.array([key in placed.where for key in rows], bool)]] = True
    for number, group in enumerate(matches.groups):
        mine = (matches.group == number) & synchronising
        guessed = group.matched_by == "world_order" and piped
        if not guessed and np.isin(matches.dimension[mine], _SHARE_DATA).any():
            data = _joined(data, group.members)
        inside = np.isin(matches.dimension[mine], [*INSIDE_A_PASS, UNKNOWN_DIMENSION])
        if guessed or not inside.any() or apart[mine].any():
            continue
        unit = _joined(unit, group.members)
        if (matches.dimension[mine] == DIMENSIONS.index("ep")).any():
            experts |= set(group.members)
    return unit, {unit[m] for m in experts}, data


def _joined(numbers: Sequence[int], members: Iterable[int]) -> list[int]:
    met = {numbers[m] for m in members}
    return [min(met) if n in met else n for n in numbers]


def with_exchanges(
    units: Sequence[int], lasts: Sequence[I64], stage: Sequence[int]
) -> tuple[list[int], set[int]]:
    """(units with ranks of a stage that nothing matches (DeepEP names no group) and whose exchanges end as
    far apart, most times; those that may be several: they do so in every step). lasts: by rank, from one
    exchange's end to the next one's, 0 where none is next."""
    found = list(units)
    size = Counter(units)
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for m, unit in enumerate(units):
        if size[unit] == 1 and lasts[m].any():
            alike[stage[m], lasts[m].shape, (lasts[m] > 0).tobytes()].append(m)
    several: set[int] = set()
    for members in alike.values():
        for m, first in _ended_together(np.array([lasts[m] for m in members])):
            found[members[m]] = units[members[first]]
            steady = np.ptp(lasts[members[m]], axis=1).mean() < SAME_FRAC * lasts[members[m]].mean()
            several |= {units[members[first]]} if steady else set()
    return found, several


def _ended_together(lasts: I64) -> Iterator[tuple[int, int]]:
    """(rank, the first rank of its unit), of those that are not the first. Only those are compared that at a
    few of the same places are about as long: each with all would be quadratic."""
    there = lasts[0] > 0
    # Not all of thousands.
    between = lasts[:, there][:, :: max(1, int(there.sum()) // COMPARED)]
    places = np.random.default_rng(0).integers(between.shape[1], size=LOOKS)
    about = (between[:, places] / (ROUGH * SAME_FRAC * between[0].mean())).astype(np.int64)
    firsts: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for m, mine in enumerate(between):
        keys = [(look, key.tobytes()) for look, key in enumerate(about[m])]
        others = sorted({o for key in keys for o in firsts[key]})
        apart = np.median(abs(between[others] - mine), axis=-1)
        near = np.flatnonzero(apart < SAME_FRAC * mine.mean())
        if len(near):
            yield m, others[near[0]]
        else:
            for key in keys:
                firsts[key].append(m)


def transfers(cells: Sequence[Cell], lasts: F64, partners: Partners, lonely: Set[int]) -> F64:
    """How long each cell takes once all have come. Who comes last waits for nobody: the shortest is the
    transfer, and no common clock is needed. lonely: messages whose other side was not captured; they, and who
    takes part in them, keep their waiting for it."""
    met = lasts.copy()
    for c, others in partners.items():
        met[c] = lasts[sorted(others)].min(axis=0)
    # Not so where the other side takes part in something else too: then what the others of its kind take.
    told = {c: others for c, others in partners.items() if not others & lonely}
    closed = {c for c, others in told.items() if all(partners[o] == others for o in others)}
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for c in told:
        alike[cells[c].kind, cells[c].bytes].append(c)
    usual: dict[tuple[str, int], float] = {}
    middle = median(met)
    pairs: dict[tuple[str, frozenset[int]], list[float]] = defaultdict(list)
    for key, rows in alike.items():
        known = [c for c in rows if c in closed]
        usual[key] = float(np.median(met[known]) if known else np.quantile(met[rows], FASTEST))
        for c in known:
            over = float(middle[c]) / max(usual[key], 1.0)
            pairs[key[0], frozenset(cells[o].member for o in partners[c])].append(over)
    slower = {pair: float(median(np.array(over))) for pair, over in pairs.items()}
    for c in told.keys() - closed:
        # The slower of the two, where both are known; and no longer than itself, or each other side is there.
        sides = sorted(partners[c] - {c})
        kind, mine = cells[c].kind, [frozenset((cells[c].member, cells[o].member)) for o in sides]
        most = max(slower.get((kind, pair), 1.0) for pair in mine) * usual[kind, cells[c].bytes]
        met[c] = np.minimum(np.minimum(lasts[c], lasts[sides].max(axis=0)), most)
    for c, cell in enumerate(cells):
        if cell.kind == "messages" and c not in partners:
            # Those that it waited for are not here, and may be there when this rank comes once it is sound.
            met[c] = np.minimum(lasts[c], np.quantile(lasts[c], FASTEST))
    return met


def _by_message(schedule: JobSchedule, cell_of: Mapping[tuple[int, int], int]) -> Partners:
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


def _by_collective(matches: Matches, where: Mapping[tuple[int, int], int], schedule: JobSchedule) -> Partners:
    """As they were matched; not where all ranks of a pipeline were taken for one group for doing alike."""
    guessed = [i for i, g in enumerate(matches.groups) if g.matched_by == "world_order" and schedule.ranks]
    met: dict[int, set[int]] = defaultdict(set)
    columns = zip(matches.member.tolist(), matches.row.tolist(), matches.collective.tolist(), strict=True)
    for member, row, collective in columns:
        if matches.group[collective] not in guessed and (cell := where.get((member, row))) is not None:
            met[collective].add(cell)
    # One set for all of a meeting: one for each would be quadratic in ranks.
    return {cell: cells for cells in map(frozenset, met.values()) if len(cells) > 1 for cell in cells}


def _by_structure(
    cells: Sequence[Cell], lasts: F64, schedule: JobSchedule, known: Container[int]
) -> Partners:
    """Collectives that nothing matches: the n-th of a kind on the replicas of a stage; or on the stages of a
    pipeline, where some stages or as many ranks have it and less waiting is left unexplained (embeddings)."""
    count: dict[tuple[int, str], int] = defaultdict(int)
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for c, cell in enumerate(cells):
        placed = schedule.ranks and schedule.ranks[cell.member] is not None
        if cell.is_collective and c not in known and placed and not cell.missing:
            alike[cell.kind, count[cell.member, cell.kind]].append(c)
            count[cell.member, cell.kind] += 1
    found: Partners = {}
    for rows in alike.values():
        places = {c: place for c in rows if (place := schedule.ranks[cells[c].member]) is not None}
        stages = {place.stage for place in places.values()}
        replicas = _grouped({c: place.stage for c, place in places.items()})
        chosen = replicas
        if 1 < len(stages) < (schedule.pp or 0) or {cells[c].group_size for c in rows} == {len(stages)}:
            pipeline = _grouped({c: place.pipeline for c, place in places.items()})
            waits = [float(np.mean([lasts[g].min(axis=0).mean() for g in of])) for of in (replicas, pipeline)]
            chosen = pipeline if waits[1] < HALF * waits[0] else replicas
        found |= {c: group for group in map(frozenset, chosen) if len(group) > 1 for c in group}
    return found


def _grouped(keys: dict[int, int]) -> list[list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for c, key in keys.items():
        found[key].append(c)
    return list(found.values())
