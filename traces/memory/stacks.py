"""Call stacks of a memory snapshot, each distinct one once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from perfdoc.traces.memory.machine import TOO_MUCH, FrameRef, Machine, SnapshotProblem, StackRef

MAX_FRAMES = 1 << 18
MAX_STACKS = 1 << 21
MAX_DEPTH = 1 << 12
"""Frames of one stack; Python's own limit is 1000."""
MAX_STACK_FRAMES = 1 << 24
"""Frames of all distinct stacks together. The two real snapshots have 172 and 188 stacks of about 32."""

NO_STACK = 0
"""Index of the stack without frames."""


class MemoryFrame(NamedTuple):
    """One call: hostile text, and a path that tells about its owner."""

    filename: str
    function: str
    line: int


class Stacks:
    """Interns frames and stacks by what they say; PyTorch shares equal ones only in part."""

    def __init__(self) -> None:
        self.frames: list[MemoryFrame] = []
        self._refs: list[FrameRef] = []
        self._frame_index: dict[MemoryFrame, int] = {}
        self.members = array("i")
        """Frames of all stacks, one stack after the other, the innermost call first."""
        self.offsets = array("q", (0, 0))
        self._index: dict[bytes, int] = {b"": NO_STACK}

    def frame(self, found: dict[Any, Any]) -> FrameRef:
        """The frame that a dictionary of a file describes. Raises SnapshotProblem."""
        filename, function, line = found["filename"], found.get("name", ""), found.get("line", 0)
        if type(filename) is not str or type(function) is not str or type(line) is not int:
            raise SnapshotProblem("has a stack frame whose file, name or line is of the wrong type")
        frame = MemoryFrame(filename, function, line if 0 <= line < 1 << 31 else 0)
        index = self._frame_index.setdefault(frame, len(self.frames))
        if index == len(self.frames):
            if index >= MAX_FRAMES:
                raise SnapshotProblem(TOO_MUCH)
            self.frames.append(frame)
            self._refs.append(FrameRef(index))
        return self._refs[index]

    def stack(self, value: object, machine: Machine) -> int:
        """The stack that the value of a `frames` key stands for. Raises SnapshotProblem."""
        if isinstance(value, StackRef):
            return value.index
        if value is None:
            return NO_STACK
        if not isinstance(value, list):
            raise SnapshotProblem("has frames that are no list")
        if len(value) == 1 and isinstance(value[0], StackRef):
            return value[0].index
        index = self.of_frames(value)
        machine.settle(value, StackRef(index))
        # Whoever else holds the list finds the stack in it.
        value[:] = [StackRef(index)]
        return index

    def of_frames(self, frames: Sequence[object]) -> int:
        """The stack of these frames, the innermost first. Raises SnapshotProblem."""
        members = array("i")
        if len(frames) > MAX_DEPTH:
            raise SnapshotProblem(f"has a stack of more than {MAX_DEPTH:,} frames")
        for frame in frames:
            if not isinstance(frame, FrameRef):
                raise SnapshotProblem("has a stack with something else than frames in it")
            members.append(frame.index)
        key = members.tobytes()
        index = self._index.get(key)
        if index is None:
            index = len(self._index)
            if index >= MAX_STACKS or len(self.members) + len(members) > MAX_STACK_FRAMES:
                raise SnapshotProblem(TOO_MUCH)
            self._index[key] = index
            self.members.extend(members)
            self.offsets.append(len(self.members))
        return index
