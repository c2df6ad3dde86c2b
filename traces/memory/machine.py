"""The state of one reading of a snapshot's pickle: values under construction, and what can be referred to."""

from __future__ import annotations

from array import array
from typing import Any, BinaryIO, Protocol

CHUNK_BYTES = 4 << 20
MARGIN_BYTES = 64 << 10
"""More than one event takes in a file; that much is in the window whenever an opcode begins."""

MAX_STACK = 4 << 20
"""Values under construction at once. Python's pickler needs a few thousand, PyTorch's C++ one all events."""
MAX_KEPT = 1 << 20
"""Lists and dictionaries that are no rows, or not yet, and stay as they are."""
MAX_OBJECTS = 4 << 20
"""Different things that a pickle refers back to and that are no rows: strings, frames."""
MAX_MEMO = 1 << 26
"""All that a pickle can refer back to: two entries an event, four bytes each here."""
MAX_STRING_BYTES = 1 << 20
MAX_STRINGS_BYTES = 256 << 20
"""All distinct strings together; each counts 300 bytes more for what keeps it."""

SPENT = -1
"""In the memo: something that has become a row. From -2 down: stack -2 - code; from 0 up: an object."""

DAMAGED = "is a damaged pickle"
TRUNCATED = "is truncated"
TOO_MUCH = "holds more values than a snapshot can"


class SnapshotProblem(ValueError):
    """What is wrong with a snapshot, as the words of a sentence whose subject is the file."""


class RowKind:
    """Stands for a dictionary that has become the next row of its kind."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Extent:
    """Rows [first, end) of one kind: what is left of a list of them."""

    __slots__ = ("end", "first", "kind")

    def __init__(self, kind: RowKind, first: int, end: int) -> None:
        self.kind, self.first, self.end = kind, first, end


class FrameRef:
    """A frame, by its index."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class StackRef:
    """A list of frames that has been read, by its index."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Sink(Protocol):
    """Where finished dictionaries go."""

    def finish(self, found: dict[Any, Any], machine: Machine) -> object:
        """What stands for a whole dictionary from now on: a RowKind, a FrameRef, or the dictionary itself."""

    def row_count(self, kind: RowKind) -> int:
        """Rows of a kind so far."""

    def follow(self, machine: Machine) -> bool:
        """Read what is at the machine's position, a dictionary or a list, if it is of a known form.

        Whether it was; if not, nothing has changed.
        """


class Machine:
    """One reading of one file. Methods that take what follows an opcode are called with `at` behind it."""

    def __init__(self, file: BinaryIO, sink: Sink) -> None:
        self._file, self.sink = file, sink
        self.window = b""
        self.at = 0
        """Next byte of the window."""
        self.end = 0
        """Bytes of the window that are the file's; zeros follow, so that no look-ahead leaves it."""
        self.whole = False
        """Whether the file has been read to its end."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo = array("i")
        self._objects: list[Any] = []
        self._free_slots: list[int] = []
        self._places: dict[int, int] = {}
        """Place in the memo of each list and dictionary in it, by id."""
        self._same: dict[object, object] = {}
        self._same_slots: dict[int, int] = {}
        """Slots of what is in `_same`, by id."""
        self.text_places: dict[str, int] = {}
        """Where in the memo the first short strings are: the keys of events are among them."""
        self._kept = 0
        self._string_bytes = 0

    def refill(self, wanted: int) -> None:
        """Read on, so that `wanted` bytes are in the window if the file has as many."""
        left = self.window[self.at : self.end]
        chunks, have = [left], len(left)
        while have < wanted or have == len(left):
            chunk = self._file.read(max(CHUNK_BYTES, wanted - have))
            if not chunk:
                self.whole = True
                break
            chunks.append(chunk)
            have += len(chunk)
        self.window = b"".join([*chunks, bytes(16)])
        self.at, self.end = 0, have

    def refer(self, index: int) -> object:
        """What entry `index` of the memo holds."""
        if not 0 <= index < len(self.memo):
            raise SnapshotProblem(f"{DAMAGED}: it refers to something that it has not defined")
        code = self.memo[index]
        if code == SPENT:
            raise SnapshotProblem("holds one event or block at two places")
        return self._objects[code] if code >= 0 else StackRef(-2 - code)

    def settle(self, container: object, value: object) -> None:
        """Let a finished container go: what refers to it gets `value` from now on."""
        self._kept -= 1
        place = self._places.pop(id(container), None)
        if place is None:
            return
        slot = self.memo[place]
        if isinstance(value, (RowKind, StackRef)):
            self.memo[place] = SPENT if isinstance(value, RowKind) else -2 - value.index
            self._objects[slot] = None
            self._free_slots.append(slot)
        else:
            self._objects[slot] = value

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        if self.end - self.at < count:
            self.refill(count)
            if self.end < count:
                raise SnapshotProblem(TRUNCATED)
        self.at += count
        return self.window[self.at - count : self.at]

    def push_text(self, length: int) -> None:
        """A string of that many bytes."""
        self.stack.append(self.text(self.take(length) if length <= MAX_STRING_BYTES else None))

    def text(self, raw: bytes | None) -> str:
        """The one string of these bytes: some are written anew for each event. None for too many."""
        if raw is None or self._string_bytes > MAX_STRINGS_BYTES:
            raise SnapshotProblem("holds more text than a snapshot can")
        found = self._same.get(raw)
        if found is None:
            self._string_bytes += len(raw) + 300
            found = self._same[raw] = raw.decode("utf-8", "replace")
        assert isinstance(found, str)
        return found

    def push_long(self, length: int) -> None:
        """An integer of that many bytes."""
        if length > 9:
            raise SnapshotProblem("holds an integer of more than 64 bits")
        self.stack.append(int.from_bytes(self.take(length), "little", signed=True))

    def open(self, container: list[Any] | dict[Any, Any] | tuple[Any, ...]) -> None:
        """A new container."""
        self._kept += 1
        if self._kept > MAX_KEPT:
            raise SnapshotProblem(TOO_MUCH)
        self.stack.append(container)

    def push_tuple(self, items: list[Any]) -> None:
        """A tuple. Snapshots name memory pools by pairs of numbers, one for each event."""
        if len(items) > 2 or any(type(item) is not int for item in items) or len(self._same) > MAX_KEPT:
            self.open(tuple(items))
        else:
            self.stack.append(self.pair(tuple(items)))

    def pair(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The one tuple of these numbers."""
        found = self._same.setdefault(numbers, numbers)
        assert isinstance(found, tuple)
        return found

    def mark(self) -> None:
        """Items of a container begin."""
        self.marks.append(len(self.stack))
        if len(self.marks) > MAX_KEPT:
            raise SnapshotProblem(TOO_MUCH)

    def since_mark(self) -> list[Any]:
        """Take the items since the last mark."""
        if not self.marks:
            raise SnapshotProblem(DAMAGED)
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def pop(self, count: int) -> list[Any]:
        """Take the last items."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise SnapshotProblem(DAMAGED)
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def put(self, index: int) -> None:
        """Remember the last value. Picklers number in order; a number out of it could claim any memory."""
        if index != len(self.memo) or not self.stack:
            raise SnapshotProblem(DAMAGED)
        value = self.stack[-1]
        if index >= MAX_MEMO or len(self._objects) >= MAX_OBJECTS:
            raise SnapshotProblem(TOO_MUCH)
        if isinstance(value, RowKind):
            self.memo.append(SPENT)
        elif isinstance(value, StackRef):
            self.memo.append(-2 - value.index)
        elif isinstance(value, (str, tuple)):
            if isinstance(value, str) and len(value) <= 64 and len(self.text_places) < 4096:
                self.text_places.setdefault(value, index)
            self.memo.append(self.same_slot(value))
        else:
            if isinstance(value, (dict, list)) and self._places.setdefault(id(value), index) != index:
                raise SnapshotProblem(DAMAGED)
            self.memo.append(self._slot(value))

    def same_slot(self, value: object) -> int:
        """What the memo holds for something of which there is one: the same at every place."""
        slot = self._same_slots.get(id(value))
        if slot is None:
            slot = self._same_slots[id(value)] = self._slot(value)
        return slot

    def _slot(self, value: object) -> int:
        if self._free_slots:
            slot = self._free_slots.pop()
            self._objects[slot] = value
            return slot
        self._objects.append(value)
        return len(self._objects) - 1

    def append(self, items: list[Any]) -> None:
        """Items of the list below them."""
        target = self.stack[-1] if self.stack else None
        if not isinstance(target, list):
            raise SnapshotProblem(DAMAGED)
        kind = items[0] if items else None
        if not isinstance(kind, RowKind):
            target.extend(items)
            return
        end = self.sink.row_count(kind)
        first = end - len(items)
        if items.count(kind) != len(items):
            raise SnapshotProblem("holds a list of unlike things where one of events or blocks belongs")
        last = target[-1] if target else None
        if isinstance(last, Extent) and last.kind is kind and last.end == first:
            last.end = end
        else:
            target.append(Extent(kind, first, end))

    def set(self, items: list[Any]) -> None:
        """Keys and values of the dictionary below them. A row's come all at once."""
        target = self.stack[-1] if self.stack else None
        if not isinstance(target, dict) or len(items) % 2:
            raise SnapshotProblem(DAMAGED)
        keys = items[0::2]
        for key in keys:
            if type(key) is not str:
                raise SnapshotProblem("has a key that is not text")
        if None in target:
            raise SnapshotProblem(DAMAGED)
        target.update(zip(keys, items[1::2], strict=True))
        row = self.stack[-1] = self.sink.finish(target, self)
        if row is not target:
            self.settle(target, row)
            # Whoever else holds it on the stack must not make a second row of it. No file has None as a key.
            target.clear()
            target[None] = None
