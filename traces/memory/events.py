"""Events of a memory snapshot, from dictionaries in its pickle to columns.

A file holds up to millions of events that all look alike: the same keys, referred to by the same numbers.
Once one has been read opcode by opcode, a pattern made from it reads those that follow, about ten times
faster. What does not fit the pattern is read opcode by opcode again.
"""

from __future__ import annotations

from array import array
from typing import Any

from perfdoc.traces.memory.machine import (
    MARGIN_BYTES,
    MAX_MEMO,
    SPENT,
    TOO_MUCH,
    FrameRef,
    Machine,
    RowKind,
    SnapshotProblem,
    StackRef,
)
from perfdoc.traces.memory.pattern import (
    EventPattern,
    decoded,
    is_reference,
    is_text,
    match_frames,
    pair_of,
    reference,
    references,
    text_bytes,
)
from perfdoc.traces.memory.stacks import NO_STACK, Stacks
from perfdoc.traces.table import Strings

EVENT = RowKind("event")

MAX_EVENTS = 1 << 24
"""16.8 million, whose columns take 0.7 GB."""
MAX_PATTERNS = 16

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "user_defined",
)
"""In the order of MemoryAction, from 1; any other is 0."""
_ACTION_CODES = {name: code for code, name in enumerate(ACTIONS, 1)}

_STACK_CACHE_BYTES = 64 << 20
_CACHED = 1 << 16


def integer(found: dict[Any, Any], key: str, what: str, default: int | None = None) -> int:
    """A number of 64 bits in a file's dictionary. Raises SnapshotProblem."""
    value = found.get(key, default)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        state = "without" if value is None else "with an impossible"
        raise SnapshotProblem(f"has {what} {state} {key}")
    return value


class EventColumns:
    """Events in the order of the file."""

    def __init__(self, stacks: Stacks, labels: Strings) -> None:
        self._stacks, self._labels = stacks, labels
        self.action = array("b")
        self.address = array("q")
        """Of an out-of-memory event, what the device had free in bytes."""
        self.size_bytes = array("q")
        self.stream = array("q")
        self.time_us = array("q")
        self.label = array("i")
        self.stack = array("i")
        self._columns = (
            self.action,
            self.address,
            self.size_bytes,
            self.stream,
            self.time_us,
            self.label,
            self.stack,
        )
        self._patterns: dict[tuple[str, ...], EventPattern | None] = {}
        self._action_of: dict[bytes, int] = {}
        self._label_of: dict[bytes, int] = {b"": 0}
        self._slot_of: dict[bytes, int | None] = {}
        self._stack_of: dict[bytes, int] = {}
        self._stack_room = _STACK_CACHE_BYTES
        self._numbers = _Numbers()

    def __len__(self) -> int:
        return len(self.action)

    def add(self, found: dict[Any, Any], machine: Machine) -> RowKind:
        """One event. Raises SnapshotProblem."""
        if len(self) >= MAX_EVENTS:
            raise SnapshotProblem(TOO_MUCH)
        action, label = found["action"], found.get("user_metadata", "")
        if type(action) is not str or type(label) is not str:
            raise SnapshotProblem("has an event whose action or metadata is no text")
        keys = tuple(found)
        row = (
            _ACTION_CODES.get(action, 0),
            integer(found, "device_free" if "device_free" in found else "addr", "an event"),
            integer(found, "size", "an event"),
            integer(found, "stream", "an event", 0),
            integer(found, "time_us", "an event", -1),
            self._labels.intern(label),
            self._stacks.stack(found.get("frames"), machine),
        )
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if keys not in self._patterns and len(self._patterns) < MAX_PATTERNS:
            self._patterns[keys] = EventPattern.of(found, machine.text_places)
        return EVENT

    def follow(self, machine: Machine) -> bool:
        """Read the events at the machine's position that fit a pattern; whether there was any."""
        before = len(self)
        patterns = [pattern for pattern in self._patterns.values() if pattern is not None]
        try:
            while any(self._run(pattern, machine) for pattern in patterns):
                pass
        except OverflowError:
            raise SnapshotProblem("has an event with an impossible number") from None
        return len(self) > before

    def follow_frames(self, machine: Machine) -> bool:
        """Read the list at the machine's position if it is one of known frames; whether it was."""
        found = match_frames(machine.window, machine.at)
        if found is None or (stack := self._stack(found[0], machine)) is None:
            return False
        machine.at = found.end()
        machine.stack.append(StackRef(stack))
        machine.put(len(machine.memo))
        return True

    def _run(self, pattern: EventPattern, machine: Machine) -> bool:
        match, groups, before, behind = pattern.match, pattern.groups, pattern.before, pattern.behind
        window, start, at = machine.window, machine.at, machine.at
        # Behind this an event may go on beyond the window.
        safe = machine.end if machine.whole else machine.end - MARGIN_BYTES // 2
        numbers, actions, labels, slots = self._numbers, self._action_of, self._label_of, self._slot_of
        add_action, add_address, add_size, add_stream, add_time, add_label, add_stack = (
            column.append for column in self._columns
        )
        memo, push = machine.memo, machine.stack.append
        while at < safe and (found := match(window, at)) is not None:
            action, address, size, stream, time, label, frames = found.group(*groups)
            if len(self.action) >= MAX_EVENTS or len(memo) >= MAX_MEMO:
                raise SnapshotProblem(TOO_MUCH)
            if frames[:1] == b"]":
                stack = self._stack(frames, machine)
                if stack is None:
                    break
            elif frames:
                stack = self._stacks.stack(machine.refer(reference(frames)), machine)
            else:
                stack = NO_STACK
            add_action(actions[action] if action in actions else self._action(action, machine))
            add_label(labels[label] if label in labels else self._label(label, machine))
            memo.append(SPENT)
            for group in before:
                raw = found[group]
                slot = slots[raw] if raw in slots else self._slot(raw, machine)
                if slot is not None:
                    memo.append(slot)
            if frames[:1] == b"]":
                memo.append(-2 - stack)
            for group in behind:
                raw = found[group]
                slot = slots[raw] if raw in slots else self._slot(raw, machine)
                if slot is not None:
                    memo.append(slot)
            add_stack(stack)
            add_address(numbers[address])
            add_size(numbers[size])
            add_stream(numbers[stream] if stream else 0)
            add_time(decoded(time) if time else -1)
            push(EVENT)
            at = found.end()
        machine.at = at
        return at > start

    # Each of these is asked once for all events that say the same in the same bytes.

    def _action(self, raw: bytes, machine: Machine) -> int:
        action = machine.refer(reference(raw))
        if type(action) is not str:
            raise SnapshotProblem("has an event whose action is no text")
        return self._action_of.setdefault(raw, _ACTION_CODES.get(action, 0))

    def _label(self, raw: bytes, machine: Machine) -> int:
        label = machine.text(text_bytes(raw)) if is_text(raw) else machine.refer(reference(raw))
        if type(label) is not str:
            raise SnapshotProblem("has an event whose metadata is no text")
        if len(self._label_of) >= _CACHED:
            self._label_of.clear()
        index = self._label_of[raw] = self._labels.intern(label)
        return index

    def _slot(self, raw: bytes, machine: Machine) -> int | None:
        """What the memo gets for a text or a pair; None for a reference to one, which has its place."""
        slot = None
        if not is_reference(raw):
            value = machine.text(text_bytes(raw)) if is_text(raw) else machine.pair(pair_of(raw))
            slot = machine.same_slot(value)
        if len(self._slot_of) >= _CACHED:
            self._slot_of.clear()
        self._slot_of[raw] = slot
        return slot

    def _stack(self, raw: bytes, machine: Machine) -> int | None:
        """The stack that a list of references is; None for a list of other things."""
        stack = self._stack_of.get(raw)
        if stack is None:
            places, defined = references(raw), len(machine.memo)
            # A list may hold itself, which gets its place after this look at it.
            frames = [machine.refer(place) for place in places if place < defined]
            if len(frames) < len(places) or not all(isinstance(frame, FrameRef) for frame in frames):
                return None
            stack = self._stacks.of_frames(frames)
            self._stack_room -= len(raw) + 200
            if self._stack_room < 0:
                self._stack_of.clear()
                self._stack_room = _STACK_CACHE_BYTES
            self._stack_of[raw] = stack
        return stack


class _Numbers(dict[bytes, int]):
    """Numbers by their bytes: sizes, streams and addresses recur."""

    def __missing__(self, raw: bytes) -> int:
        if len(self) >= _CACHED:
            self.clear()
        value = self[raw] = decoded(raw)
        return value
