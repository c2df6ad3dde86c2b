"""A program of its own: a snapshot's pickle on standard input, its columns on standard output.

A pickle can run code and claim any memory and time. Here it can name no class, so that there is nothing to
call, and the system ends this process at a bound of memory and of time. It imports nothing of perfdoc, and so
starts in a few hundredths of a second.

Output: a line of JSON, {"columns": {name: [typecode, length]}, ...} or {"problem": text}; then the columns.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import sys
from array import array
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any, BinaryIO, TypeAlias

Row: TypeAlias = dict[Any, Any]

MAX_EVENTS = 1 << 24
"""16.8 million, whose columns take 0.7 GB."""
MAX_DEVICES = 1024
MAX_DEPTH = 1 << 12
"""Frames of one stack; Python's own limit is 1000."""

BASE_BYTES = 96 << 20
BYTES_PER_FILE_BYTE = 10
"""Real ones take 4.5, such as have no C++ stacks 7, without stacks 7.6."""
BASE_S = 30
S_PER_MIB = 0.5
"""Ten times what real snapshots take."""

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
_STATE_CODES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}
"""In the order of BlockState. The last two are two PyTorch versions' words for one state."""


class SnapshotProblem(ValueError):
    """What is wrong with a snapshot, as the words of a sentence whose subject is the file."""


class PlainUnpickler(pickle.Unpickler):
    """Builds dictionaries, lists, tuples, text and numbers only."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises SnapshotProblem."""
        raise SnapshotProblem("asks for Python objects to be made, which no memory snapshot does")

    def persistent_load(self, pid: Any) -> Any:
        """Raises SnapshotProblem."""
        self.find_class("", "")


class Columns:
    """The columns of one snapshot, and the texts that they refer to."""

    def __init__(self, top: object) -> None:
        """top: what the pickle holds. Raises SnapshotProblem."""
        if isinstance(top, list):
            top = {"segments": top}
        if not isinstance(top, dict) or "segments" not in top:
            raise SnapshotProblem("holds something else than segments and events")
        self.columns: dict[str, array[int]] = {}
        self._labels = {"": 0}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._frame_of: dict[int, int] = {}
        """By the id of a file's dictionary, all of which live as long as `top`."""
        self._stacks = {b"": 0}
        self._members = array("i")
        self._offsets = array("q", (0, 0))
        segments = _rows(top["segments"], "segments")
        self._add_segments(segments, [_blocks(segment) for segment in segments])
        traces = top.get("device_traces", [])
        if not isinstance(traces, list) or len(traces) > MAX_DEVICES:
            raise SnapshotProblem("has no list of devices' events")
        traces = [_rows(trace, "events") for trace in traces]
        if sum(map(len, traces)) > MAX_EVENTS:
            raise SnapshotProblem(f"has more than {MAX_EVENTS:,} events")
        self._add_events(traces)
        annotations = _rows(top.get("external_annotations", []), "annotations")
        self._add_annotations([*annotations, *_annotations_among(traces)])
        self.columns |= {"stack_offsets": self._offsets, "stack_frames": self._members}
        self.header = {
            "columns": {name: [column.typecode, len(column)] for name, column in self.columns.items()},
            "labels": list(self._labels),
            "frames": list(self._frames),
            "settings": dict(_plain(top.get("allocator_settings"))),
        }

    def _add_segments(self, segments: list[Row], blocks: list[list[Row]]) -> None:
        rows = list(chain.from_iterable(blocks))
        states = [_STATE_CODES.get(state, -1) for state in _texts(rows, "state", "a block")]
        if -1 in states:
            raise SnapshotProblem("has a block in an unknown state")
        ends = list(accumulate(map(len, blocks), initial=0))
        self.columns |= {
            "blocks.address": _integers(rows, "address", "a block"),
            "blocks.size_bytes": _integers(rows, "size", "a block"),
            "blocks.requested_bytes": _integers(rows, "requested_size", "a block"),
            "blocks.state": array("b", states),
            "blocks.stack": self._stacks_of(rows),
            "segments.device": _integers(segments, "device", "a segment"),
            "segments.address": _integers(segments, "address", "a segment"),
            "segments.size_bytes": _integers(segments, "total_size", "a segment"),
            "segments.stream": _integers(segments, "stream", "a segment", 0),
            "segments.first_block": array("q", ends[:-1]),
            "segments.end_block": array("q", ends[1:]),
            "segments.stack": self._stacks_of(segments),
            "segments.is_large": array("b", [row.get("segment_type") == "large" for row in segments]),
            "segments.is_expandable": array("b", [row.get("is_expandable") is True for row in segments]),
        }

    def _add_events(self, traces: list[list[Row]]) -> None:
        rows = list(chain.from_iterable(traces))
        actions = [_ACTION_CODES.get(action, 0) for action in _texts(rows, "action", "an event")]
        device = array("i")
        for ordinal, trace in enumerate(traces):
            device.extend(array("i", (ordinal,)) * len(trace))
        # Of an out-of-memory event, what the device had free in bytes.
        places = [{"addr": row["device_free"]} if "device_free" in row else row for row in rows]
        self.columns |= {
            "events.device": device,
            "events.action": array("b", actions),
            "events.address": _integers(places, "addr", "an event"),
            "events.size_bytes": _integers(rows, "size", "an event"),
            "events.stream": _integers(rows, "stream", "an event", 0),
            "events.time_us": _integers(rows, "time_us", "an event", -1),
            "events.label": self._labels_of(_texts(rows, "user_metadata", "an event", "")),
            "events.stack": self._stacks_of(rows),
        }

    def _add_annotations(self, rows: list[Row]) -> None:
        stages = _texts(rows, "stage", "an annotation")
        if not {"START", "END"}.issuperset(stages):
            raise SnapshotProblem("has an annotation without a stage")
        self.columns |= {
            "annotations.device": _integers(rows, "device", "an annotation", 0),
            "annotations.time_us": _integers(rows, "time_us", "an annotation"),
            "annotations.name": self._labels_of(_texts(rows, "name", "an annotation")),
            "annotations.is_start": array("b", [stage == "START" for stage in stages]),
        }

    def _labels_of(self, texts: list[str]) -> array[int]:
        labels = self._labels
        return array("i", [labels.setdefault(text, len(labels)) for text in texts])

    def _stacks_of(self, rows: list[Row]) -> array[int]:
        """Each distinct stack once, by what its frames say: PyTorch shares equal ones only in part."""
        return array("i", [self._stack(row.get("frames")) for row in rows])

    def _stack(self, frames: object) -> int:
        if frames is None:
            return 0
        if not isinstance(frames, list):
            raise SnapshotProblem("has frames that are no list")
        if len(frames) > MAX_DEPTH:
            raise SnapshotProblem(f"has a stack of more than {MAX_DEPTH:,} frames")
        known = self._frame_of
        members = array("i", [known[id(f)] if id(f) in known else self._frame(f) for f in frames])
        index = self._stacks.setdefault(members.tobytes(), len(self._stacks))
        if index == len(self._offsets) - 1:
            self._members.extend(members)
            self._offsets.append(len(self._members))
        return index

    def _frame(self, row: object) -> int:
        if not isinstance(row, dict) or "filename" not in row:
            raise SnapshotProblem("has a stack with something else than frames in it")
        filename, function, line = row["filename"], row.get("name", ""), row.get("line", 0)
        if type(filename) is not str or type(function) is not str or type(line) is not int:
            raise SnapshotProblem("has a stack frame whose file, name or line is of the wrong type")
        frame = filename, function, line if 0 <= line < 1 << 31 else 0
        index = self._frame_of[id(row)] = self._frames.setdefault(frame, len(self._frames))
        return index


def _rows(value: object, what: str) -> list[Row]:
    if not isinstance(value, list) or not set(map(type, value)) <= {dict}:
        raise SnapshotProblem(f"has something else where {what} belong")
    return value


def _values(rows: list[Row], key: str, what: str, kind: type, default: object) -> list[Any]:
    values = [row.get(key, default) for row in rows]
    if not set(map(type, values)) <= {kind}:
        raise SnapshotProblem(f"has {what} without {key} or with an impossible {key}")
    return values


def _integers(rows: list[Row], key: str, what: str, default: int | None = None) -> array[int]:
    try:
        return array("q", _values(rows, key, what, int, default))
    except OverflowError:
        raise SnapshotProblem(f"has {what} whose {key} has more than 64 bits") from None


def _texts(rows: list[Row], key: str, what: str, default: str | None = None) -> list[str]:
    return _values(rows, key, what, str, default)


def _blocks(segment: Row) -> list[Row]:
    """A segment's blocks as of today. Until 2.0 a block had no address: one lies behind the other; and what
    had been in it was a list, the latest first."""
    blocks = _rows(segment.get("blocks"), "a segment's blocks")
    (start,) = _integers([segment], "address", "a segment")
    sizes = _integers(blocks, "size", "a block")
    rows = []
    for block, size, address in zip(blocks, sizes, accumulate(sizes, initial=start), strict=False):
        history = block.get("history")
        latest = history[0] if isinstance(history, list) and history else None
        latest = latest if isinstance(latest, dict) else {}
        requested = latest.get("real_size", size)
        row = {"address": address, "requested_size": requested, "frames": latest.get("frames")}
        rows.append(row | block)
    return rows


def _annotations_among(traces: list[list[Row]]) -> Iterator[Row]:
    """PyTorch 2.4 and 2.5 wrote annotations as events whose one frame has the stage as its function."""
    for device, trace in enumerate(traces):
        for row in trace:
            if row["action"] != "user_defined" or not row.get("frames") or row.get("time_us", -1) < 0:
                continue
            frame = row["frames"][0]
            if (stage := frame.get("name")) in ("START", "END"):
                name, time_us = frame["filename"], row["time_us"]
                yield {"device": device, "time_us": time_us, "name": name, "stage": stage}


def _plain(settings: object) -> Iterator[tuple[str, bool | int | float | str]]:
    """The allocator's settings; those of a dictionary inside are called `name.key`."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        inner = value if isinstance(value, dict) else {}
        pairs = [(str(key), value), *((f"{key}.{k}", v) for k, v in inner.items())]
        yield from ((k, v) for k, v in pairs[:100] if isinstance(v, (bool, int, float, str)))


def read_columns(file: BinaryIO) -> Columns:
    """A file's columns. Raises SnapshotProblem, OSError and MemoryError."""
    try:
        top = PlainUnpickler(file).load()
    except (SnapshotProblem, OSError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - the unpickler promises no kinds
        raise SnapshotProblem("is truncated, or a damaged pickle") from None
    return Columns(top)


def _bound(size: int) -> None:
    """Let the system end this process where a file of that many bytes takes too much."""
    for what, most in (
        (resource.RLIMIT_DATA, BASE_BYTES + BYTES_PER_FILE_BYTE * size),
        (resource.RLIMIT_CPU, int(BASE_S + S_PER_MIB * size / 2**20)),
        (resource.RLIMIT_CORE, 0),
    ):
        allowed = resource.getrlimit(what)[1]
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(what, (most, allowed))


def main() -> None:
    """See above."""
    columns = None
    gc.disable()  # there are millions of objects, and no garbage
    try:
        _bound(os.fstat(sys.stdin.fileno()).st_size)
        columns = read_columns(sys.stdin.buffer)
    except SnapshotProblem as found:
        problem = str(found)
    except MemoryError:
        problem = "takes more memory to read than a snapshot of its size"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    # Behind the `except`: what the error held on to is free.
    if columns is None:
        sys.stdout.write(json.dumps({"problem": problem}) + "\n")
        return
    sys.stdout.write(json.dumps(columns.header) + "\n")
    sys.stdout.flush()
    for column in columns.columns.values():
        column.tofile(sys.stdout.buffer)


if __name__ == "__main__":
    main()
