"""Rows of a memory snapshot: which dictionary of its pickle is which, and the columns that they become."""

from __future__ import annotations

from array import array
from typing import Any

from perfdoc.traces.memory.events import EVENT, MAX_EVENTS, EventColumns, integer
from perfdoc.traces.memory.machine import TOO_MUCH, Extent, Machine, RowKind, SnapshotProblem
from perfdoc.traces.memory.stacks import Stacks
from perfdoc.traces.table import Strings

BLOCK, SEGMENT, ANNOTATION = RowKind("block"), RowKind("segment"), RowKind("annotation")

STATES = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")
"""The last two are two PyTorch versions' words for one state."""
_STATE_CODES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}
_DEFAULT_POOL = (0, 0)


class SnapshotRows:
    """Takes every dictionary of a file as it is finished."""

    def __init__(self) -> None:
        self.stacks, self.labels = Stacks(), Strings()
        self.events = EventColumns(self.stacks, self.labels)
        self.blocks = _columns("address", "size_bytes", "requested_bytes", state="b", stack="i")
        self.segments = _columns(
            *("device", "address", "size_bytes", "stream", "first_block", "end_block"),
            stack="i",
            is_large="b",
            is_expandable="b",
            is_private="b",
        )
        self.annotations = _columns("time_us", "device", name="i", is_start="b")
        self._makers = (
            ("action", self.events.add),
            ("total_size", self._segment),
            ("state", self._block),
            ("stage", self._annotation),
        )

    def row_count(self, kind: RowKind) -> int:
        """Rows of a kind so far."""
        if kind is EVENT:
            return len(self.events)
        table = {BLOCK: self.blocks, SEGMENT: self.segments, ANNOTATION: self.annotations}[kind]
        return len(next(iter(table.values())))

    def follow(self, machine: Machine) -> bool:
        """See Sink."""
        if machine.window[machine.at] == ord("]"):
            return self.events.follow_frames(machine)
        return self.events.follow(machine)

    def finish(self, found: dict[Any, Any], machine: Machine) -> object:
        """See Sink."""
        for key, make in self._makers:
            if key in found:
                return make(found, machine)
        return self.stacks.frame(found) if "filename" in found else found

    def _block(self, found: dict[Any, Any], machine: Machine) -> RowKind:
        frames, requested = found.get("frames"), found.get("requested_size")
        size = integer(found, "size", "a block")
        # Until 2.0 a block held a list of what had been in it, the latest first.
        history = found.get("history")
        if isinstance(history, list) and history and isinstance(history[0], dict):
            frames = frames if frames is not None else history[0].get("frames")
            requested = requested if requested is not None else history[0].get("real_size")
        state = found["state"]
        if type(state) is not str or state not in _STATE_CODES:
            raise SnapshotProblem("has a block in an unknown state")
        values = {
            "address": integer(found, "address", "a block", -1),
            "size_bytes": size,
            "requested_bytes": integer({"requested_size": requested}, "requested_size", "a block")
            if requested is not None
            else size,
            "state": _STATE_CODES[state],
            "stack": self.stacks.stack(frames, machine),
        }
        return self._add(BLOCK, self.blocks, values)

    def _segment(self, found: dict[Any, Any], machine: Machine) -> RowKind:
        first, end = one_extent(found.get("blocks"), BLOCK, "a segment's blocks")
        values = {
            "device": integer(found, "device", "a segment"),
            "address": integer(found, "address", "a segment"),
            "size_bytes": integer(found, "total_size", "a segment"),
            "stream": integer(found, "stream", "a segment", 0),
            "first_block": first,
            "end_block": end,
            "stack": self.stacks.stack(found.get("frames"), machine),
            "is_large": int(found.get("segment_type") == "large"),
            "is_expandable": int(found.get("is_expandable") is True),
            "is_private": int(found.get("segment_pool_id", _DEFAULT_POOL) != _DEFAULT_POOL),
        }
        machine.settle(found["blocks"], SEGMENT)
        return self._add(SEGMENT, self.segments, values)

    def _annotation(self, found: dict[Any, Any], machine: Machine) -> RowKind:
        stage, name = found["stage"], found.get("name")
        if type(name) is not str or stage not in ("START", "END"):
            raise SnapshotProblem("has an annotation without a name or a stage")
        return self.add_annotation(
            name,
            stage == "START",
            integer(found, "time_us", "an annotation"),
            integer(found, "device", "an annotation", 0),
        )

    def add_annotation(self, name: str, is_start: bool, time_us: int, device: int) -> RowKind:
        """One end of a named range."""
        values = {
            "time_us": time_us,
            "device": device,
            "name": self.labels.intern(name),
            "is_start": int(is_start),
        }
        return self._add(ANNOTATION, self.annotations, values)

    def _add(self, kind: RowKind, table: dict[str, array[int]], values: dict[str, int]) -> RowKind:
        if len(next(iter(table.values()))) >= MAX_EVENTS:
            raise SnapshotProblem(TOO_MUCH)
        for name, value in values.items():
            table[name].append(value)
        return kind


def _columns(*wide: str, **narrow: str) -> dict[str, array[int]]:
    return {name: array("q") for name in wide} | {name: array(code) for name, code in narrow.items()}


def one_extent(value: object, kind: RowKind, what: str) -> tuple[int, int]:
    """Rows [first, end) that a list of rows of one kind holds; (0, 0) for an empty one.

    Raises SnapshotProblem for anything else.
    """
    if isinstance(value, list):
        if not value:
            return 0, 0
        if len(value) == 1 and isinstance(value[0], Extent) and value[0].kind is kind:
            return value[0].first, value[0].end
    raise SnapshotProblem(f"has something else where {what} belong")
