"""All ranks' operations in one list."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoc.analyzers.pipeline.known_schedules import Pass
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Bool


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
    bytes: int = -1
    waits_for: int = -1
    """Of a wait the cell that it is for."""
    is_awaited: bool = True
    partners: frozenset[int] = frozenset()
    """Of communication: all cells that must have come, its own among them."""
    is_send: bool = False
    """A message that only goes away from here."""
    is_whole: bool = True
    """Whether all that take part were captured."""
    group_size: int = 0
    """Ranks that take part in a collective; 0 unknown."""
    missing: tuple[int, ...] = ()
    """Global ranks of its group that were not captured, of a message to or from one those of its pipeline."""

    @property
    def is_compute(self) -> bool:
        """Whether it needs no other rank."""
        return self.lane < 0 and self.waits_for < 0

    @property
    def is_collective(self) -> bool:
        """Whether a group does it, and no pair."""
        return self.lane >= 0 and self.kind != "messages"

    @property
    def is_partly_absent(self) -> bool:
        """Whether it is a collective of which not all ranks were captured."""
        return self.is_collective and not self.is_whole


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """Cells by rank, then in their order; matrices by cell and step, ns."""

    cells: tuple[Cell, ...]
    takes: F64
    """How long each takes once all that take part have come."""
    lasts: F64
    """How long each lasted, waiting included."""
    computes: F64
    """Of compute: how much of it kernels compute or communicate; the rest are gaps between them."""
    shares: F64
    """Of compute: how much of it only communication inside a pass fills."""
    stage: tuple[int, ...]
    """By position; 0 for all where there is no pipeline."""
    replica: tuple[int, ...]
    """By position: which of the stage's replicas."""
    step_ns: F64
    """Measured, by step, of the rank whose steps are longest: others may have a pause in the next step."""
    span_ns: F64
    """The same from the first operation to the last: what lies between steps left out."""
    behind_ns: F64
    """By position and step: from its last operation to the next step, in which its host may be late."""
    step_names: tuple[str, ...]
    units: tuple[int, ...]
    """By position; ranks of one number go through their passes together: they share collectives inside."""
    several: frozenset[int]
    """Of the units those that may be more than one: only by when they end are they known to be any."""
    shares_experts: frozenset[int]
    """Of the units those that share experts."""
    data: tuple[int, ...]
    """By position; ranks of one number are given the same data: they share tensors or sequences."""
    stretches: Mapping[int, tuple[Bool, F64]]
    """By cell of compute in which tokens are exchanged: (whether experts compute, what each of the stretches
    between exchanges takes, by stretch and step)."""
    pp: int
    """Stages of the pipeline, captured or not; 1 where there is none."""

    @property
    def of_member(self) -> list[list[int]]:
        """Cells of each rank in order."""
        found: list[list[int]] = [[] for _ in self.stage]
        for i, cell in enumerate(self.cells):
            found[cell.member].append(i)
        return found
