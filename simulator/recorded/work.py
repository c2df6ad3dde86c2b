"""The work of ranks that do the same, side by side: passes of the replicas of a stage, or the stretches
between collectives of ranks without a pipeline."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TypeAlias

import numpy as np

from perfdoc.records import dataclass
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.traces.table import F64, Bool

Item: TypeAlias = tuple[str, int]
"""(kind of work, micro-batch or place)"""
Link: TypeAlias = tuple[Sequence[int], F64]
"""Cells of communication, and how long they take on its peers, by step."""


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """Ranks of one stage; arrays by rank, item and step, ns."""

    stage: int
    members: tuple[int, ...]
    """Positions."""
    items: tuple[Item, ...]
    takes: F64
    gaps: F64
    """What of it no kernel fills."""
    own: F64
    """What of it is not communication inside a pass: that is work of other ranks too, or waiting for them."""
    units: tuple[int, ...]
    """By rank; ranks of one number go through their passes together."""
    shares_experts: tuple[bool, ...]
    """By rank."""
    several: tuple[bool, ...]
    """By rank, whether its unit may be more than one."""
    data: tuple[int, ...]
    """By rank; ranks of one number are given the same data."""
    stretches: F64
    """By rank, item, number and step what lies between exchanges of tokens; 0 where there is none."""
    is_experts: Bool
    """By rank, item and number."""
    cells: tuple[tuple[tuple[int, ...], ...], ...]
    """By rank and item."""

    @property
    def experts(self) -> F64:
        """What experts compute, by rank, item and step."""
        return np.asarray((self.stretches * self.is_experts[..., None]).sum(axis=2))

    def waited_for(self, speed: F64, *, experts: bool) -> F64:
        """By rank, item and step, how much longer its unit takes between exchanges, in experts or elsewhere,
        than if all its ranks had as much to do; no more than they wait. speed: by rank, item and step."""
        found = np.zeros_like(self.takes)
        for rows in self.rows_of_units:
            kind = self.is_experts[rows].any(axis=0) == experts
            each = self.stretches[rows] * speed[rows][:, :, None, :]
            beyond = ((each.max(axis=0) - each.mean(axis=0)) * kind[..., None]).sum(axis=1)
            found[rows] = np.minimum(beyond, (self.takes - self.own)[rows].mean(axis=0))
        return found

    @property
    def rows_of_units(self) -> list[list[int]]:
        """Ranks that go through their passes together."""
        return [[m for m, u in enumerate(self.units) if u == unit] for unit in sorted(set(self.units))]

    def slowest_of_unit(self, own: F64) -> F64:
        """By rank, item and step the longest of its unit's."""
        found = own.copy()
        for rows in self.rows_of_units:
            found[rows] = own[rows].max(axis=0)
        return found

    @property
    def is_by_place(self) -> bool:
        """Whether items are stretches between collectives, and not passes of micro-batches."""
        return self.kinds == ("compute",)

    @property
    def kinds(self) -> tuple[str, ...]:
        """`forward`, `backward`, or what cannot be told apart."""
        return tuple(dict.fromkeys(kind for kind, _ in self.items))

    def of_kind(self, kind: str) -> Bool:
        """Which items are of a kind."""
        return np.array([k == kind for k, _ in self.items])


def work_of(job: RecordedJob) -> list[StageWork]:
    """By stage. Ranks of a stage that do not have the same items are left out: the most that do are kept."""
    mine: dict[int, dict[Item, list[int]]] = defaultdict(lambda: defaultdict(list))
    piped = any(cell.passes for cell in job.cells)
    begun: Counter[int] = Counter()
    for c, cell in enumerate(job.cells):
        # By what began before it: who comes last does not wait for that, as others do between two stretches.
        begun[cell.member] += cell.lane >= 0
        if cell.passes:
            mine[cell.member][cell.kind, cell.passes[0][1]].append(c)
        elif cell.is_compute and not piped:
            mine[cell.member][cell.kind, begun[cell.member]].append(c)
    if not piped:
        _at_common_places(mine, {m: (job.stage[m], begun[m]) for m in mine})
    alike: dict[tuple[int, tuple[Item, ...]], list[int]] = defaultdict(list)
    for member, found_items in mine.items():
        alike[job.stage[member], tuple(sorted(found_items))].append(member)
    largest: dict[int, tuple[tuple[Item, ...], list[int]]] = {}
    for (stage, items), members in alike.items():
        if stage not in largest or len(members) > len(largest[stage][1]):
            largest[stage] = items, members
    found = []
    for stage, (items, members) in sorted(largest.items()):
        cells = tuple(tuple(tuple(mine[m][i]) for i in items) for m in members)
        takes = np.array([[job.takes[list(rows)].sum(axis=0) for rows in of] for of in cells])
        busy = np.array([[job.computes[list(rows)].sum(axis=0) for rows in of] for of in cells])
        shared = np.array([[job.shares[list(rows)].sum(axis=0) for rows in of] for of in cells])
        stretches, is_experts = _stretches(job, cells)
        found.append(
            StageWork(
                stage=stage,
                members=tuple(members),
                items=items,
                takes=takes,
                gaps=np.maximum(takes - busy, 0.0),
                own=np.maximum(takes - shared, 0.0),
                units=tuple(job.units[m] for m in members),
                shares_experts=tuple(job.units[m] in job.shares_experts for m in members),
                several=tuple(job.units[m] in job.several for m in members),
                data=tuple(job.data[m] for m in members),
                stretches=stretches,
                is_experts=is_experts,
                cells=cells,
            )
        )
    return found


def _at_common_places(mine: MutableMapping[int, dict[Item, list[int]]], alike: Mapping[int, object]) -> None:
    """Work of ranks that begin as many collectives, from each place where all of them compute to the next:
    who comes last to one goes on with no wait where the others have one. alike: by rank."""
    groups: dict[object, list[int]] = defaultdict(list)
    for member in mine:
        groups[alike[member]].append(member)
    for members in groups.values():
        places = sorted(set.intersection(*({*mine[m]} for m in members)))
        for m in members if places else ():
            found: dict[Item, list[int]] = defaultdict(list)
            for item, cells in sorted(mine[m].items()):
                found[places[max(bisect_right(places, item) - 1, 0)]] += cells
            mine[m] = found


def _stretches(job: RecordedJob, cells: Sequence[Sequence[Sequence[int]]]) -> tuple[F64, Bool]:
    """As of StageWork; of ranks that differ in how many they have none: then they are not the same ones."""
    found = [[[job.stretches[c] for c in rows if c in job.stretches] for rows in of] for of in cells]
    counts = np.array([[sum(len(kind) for kind, _ in one) for one in of] for of in found])
    alike = (counts == counts[0]).all(axis=0)
    shape = (*counts.shape, int(counts[0][alike].max(initial=0)))
    takes, is_experts = np.zeros((*shape, job.takes.shape[1])), np.zeros(shape, bool)
    for m, of in enumerate(found):
        for i, one in enumerate(of):
            at = 0
            for kind, lasts in one if alike[i] else ():
                takes[m, i, at : at + len(kind)] = lasts
                is_experts[m, i, at : at + len(kind)] = kind
                at += len(kind)
    return takes, is_experts


def usual_of(peers: F64 | Sequence[F64]) -> F64:
    """Over the first axis the median; of an even number the lower: of two the other one may be slow too."""
    return np.asarray(np.quantile(np.asarray(peers), 0.5, axis=0, method="lower"))


def as_peers(works: Sequence[StageWork], at: int, own: F64, m: int, steps: Bool) -> tuple[F64, ...]:
    """By stage: what a rank's work in these steps is multiplied by to take as long as its peers'. own: of all
    ranks of its stage by item and step, or one for all steps."""
    work, means = works[at], own.copy()
    for kind in () if work.is_by_place else work.kinds:  # micro-batches have lengths of their own
        rows = work.of_kind(kind)
        means[:, rows] = means[:, rows].mean(axis=1, keepdims=True)
    usual = usual_of(np.delete(means, m, axis=0))
    factor = np.where(steps, np.minimum(1.0, usual / np.maximum(means[m], 1.0)), 1.0)
    found = tuple(np.ones_like(w.takes) for w in works)
    found[at][m] = factor
    return found


def pauses_of_peers(work: StageWork, own: F64, m: int) -> F64:
    """Gaps of a rank's peers that they do not have in all steps, by rank, item and step: no longer in a step
    than the rank's own work is beyond its shortest step."""
    found = work.gaps - work.gaps.min(axis=2, keepdims=True)
    found[m] = 0.0
    mine = own[m].sum(axis=0)
    whole = found.sum(axis=1)
    part = np.minimum(1.0, (mine - mine.min()) / np.maximum(whole, 1.0))
    return np.asarray(np.minimum(found * part[:, None, :], own))


def scaled(
    job: RecordedJob, works: Sequence[StageWork], takes: Sequence[F64], links: Iterable[Link] = ()
) -> F64:
    """Durations by cell and step with the work of stages as given, and cells as on their peers."""
    result = job.takes.copy()
    for work, wanted in zip(works, takes, strict=True):
        factor = np.divide(wanted, work.takes, out=np.ones_like(wanted), where=work.takes > 0)
        for of, by_item in zip(work.cells, factor, strict=True):
            for rows, one in zip(of, by_item, strict=True):
                result[list(rows)] *= one
    for cells, usual_ns in links:
        result[cells] = np.minimum(result[cells], usual_ns)
    return result
