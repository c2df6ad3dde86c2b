"""The replay: every operation runs when its rank is free and all that take part in it have come.

One walk does all steps and all variants of the durations at once: what it carries from one operation to the
next are matrices by variant and step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np

from perfdoc.records import dataclass
from perfdoc.simulator.recorded.cells import Cell
from perfdoc.traces.table import F64


class Act(IntEnum):
    """What happens to a cell."""

    RUN = 0
    """It computes."""
    COME = 1
    """Its rank is ready for it."""
    END = 2
    """All have come."""
    WAIT = 3
    """Its rank goes on behind another one's end."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An order in which all cells can be walked."""

    cells: tuple[Cell, ...]
    acts: tuple[tuple[Act, int], ...]
    members: int
    begins_ns: F64 | float = 0.0
    """By member and step: how long after the first one it begins."""


def plan_of(cells: Sequence[Cell], of_member: Sequence[Sequence[int]]) -> Plan | None:
    """Find an order; None where ranks wait for each other in a circle: then they were matched wrongly."""
    acts: list[tuple[Act, int]] = []
    at = [0] * len(of_member)
    come: set[int] = set()
    ended: set[int] = set()
    waiting: list[int] = []
    before: dict[tuple[int, int], int] = {}
    lane_before: dict[int, int | None] = {}
    for mine in of_member:
        for c in mine:
            if cells[c].lane >= 0:
                lane = (cells[c].member, cells[c].lane)
                lane_before[c] = before.get(lane)
                before[lane] = c
    moved = True
    while moved:
        moved = False
        for member, mine in enumerate(of_member):
            while at[member] < len(mine):
                c = mine[at[member]]
                if cells[c].is_compute:
                    acts.append((Act.RUN, c))
                elif cells[c].waits_for >= 0:
                    if cells[c].waits_for not in ended:
                        break
                    acts.append((Act.WAIT, c))
                elif c not in come:
                    earlier = lane_before[c]
                    if earlier is not None and earlier not in ended:
                        break
                    acts.append((Act.COME, c))
                    come.add(c)
                    waiting.append(c)
                    moved = True
                    if cells[c].is_awaited:
                        break
                elif c not in ended:
                    break
                at[member] += 1
                moved = True
        met = [c for c in waiting if cells[c].partners <= come]
        acts += [(Act.END, c) for c in met]
        ended.update(met)
        waiting = [c for c in waiting if c not in ended]
        moved |= bool(met)
    if waiting or any(at[m] < len(mine) for m, mine in enumerate(of_member)):
        return None
    return Plan(cells=tuple(cells), acts=tuple(acts), members=len(of_member))


def with_buffered_sends(cells: Sequence[Cell]) -> list[Cell]:
    """Sends that wait for nobody: their messages lie ready until somebody takes them, as small ones do, and
    those of gloo."""
    return [replace(cell, partners=frozenset({c})) if cell.is_send else cell for c, cell in enumerate(cells)]


def step_ends(plan: Plan, variants: Sequence[F64]) -> F64:
    """Ends of the steps, by variant and step. variants: durations by cell and step."""
    shape = len(variants), variants[0].shape[1]
    return walk(plan, lambda c: np.array([takes[c] for takes in variants]), shape)[0]


def walk(
    plan: Plan, takes: Callable[[int], F64], shape: tuple[int, int], beyond: dict[int, F64] | None = None
) -> tuple[F64, dict[int, F64]]:
    """(end of the step, when each rank had run its last operation). takes: by cell its durations by variant
    and step; shape: of these. beyond: by cell how long it lasted with its waiting; what of that is left once
    the captured ones have come takes its place."""
    free = [np.zeros(shape) + late for late in np.broadcast_to(plan.begins_ns, (plan.members, shape[1]))]
    lanes: dict[tuple[int, int], F64] = {}
    ready: dict[int, F64] = {}
    meetings: dict[frozenset[int], F64] = {}
    ends_of: dict[int, F64] = {}
    waited = {cell.waits_for for cell in plan.cells if cell.waits_for >= 0}
    # What nobody asks for any more is dropped: there are as many as operations.
    asked = Counter(cell.partners for cell in plan.cells if cell.lane >= 0)
    needed = Counter(other for cell in plan.cells for other in cell.partners)
    for act, c in plan.acts:
        cell = plan.cells[c]
        member = cell.member
        if act is Act.RUN:
            free[member] = free[member] + takes(c)
        elif act is Act.WAIT:
            free[member] = np.maximum(free[member], ends_of.pop(cell.waits_for))
        elif act is Act.COME:
            lane = lanes.get((member, cell.lane))
            ready[c] = free[member] if lane is None else np.maximum(free[member], lane)
        else:
            met = meetings.get(cell.partners)
            if met is None:
                met = np.maximum.reduce([ready[o] for o in cell.partners])
                meetings[cell.partners] = met
            end = met + takes(c)
            if beyond and c in beyond:
                end = np.maximum(met, ready[c] + beyond[c])
                beyond[c] = end - met
            lanes[member, cell.lane] = end
            if c in waited:
                ends_of[c] = end
            if cell.is_awaited:
                free[member] = np.maximum(free[member], end)
            asked[cell.partners] -= 1
            if not asked[cell.partners]:
                del meetings[cell.partners]
            for other in cell.partners:
                needed[other] -= 1
                if not needed[other]:
                    del ready[other]
    ends = dict(enumerate(free))
    for (member, _), end in lanes.items():
        ends[member] = np.maximum(ends[member], end)
    return np.maximum.reduce(list(ends.values())), ends
