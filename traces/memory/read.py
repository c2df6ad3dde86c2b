"""Reading a memory snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`) into columns.

A snapshot holds the segments that the caching allocator had at that moment, each cut into blocks, and the
history of its events up to then: a ring buffer, so it may begin in the middle. The file is a pickle, and is
read as plain data only (`memory_pickle`).
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.memory.events import EVENT
from perfdoc.traces.memory.machine import SnapshotProblem
from perfdoc.traces.memory.model import (
    MemoryAction,
    MemoryAnnotations,
    MemoryBlocks,
    MemoryEvents,
    MemorySegments,
    MemorySnapshot,
)
from perfdoc.traces.memory.opcodes import load_pickle
from perfdoc.traces.memory.rows import SEGMENT, SnapshotRows, one_extent
from perfdoc.traces.table import I32, I64
from perfdoc.traces.validate import MAX_TIME_NS

MAX_FILE_BYTES = 4 << 30
"""Files with more events than MAX_EVENTS are refused before that. Reading takes 0.4 to 0.9 of the size."""
MAX_BYTES = 1 << 48
"""256 TiB: no device has an allocation of that size."""
MAX_ADDRESS = 1 << 62
MAX_DEVICES = 1024

SUFFIXES = (".pickle", ".pkl")

_REMEDY = "Give the file that torch.cuda.memory._dump_snapshot wrote, whole."
_SMALLER = "Record a shorter history: torch.cuda.memory._record_memory_history(max_entries=1000000)."


def is_snapshot_name(name: str) -> bool:
    """Whether a file of this name is taken for a memory snapshot."""
    return name.lower().endswith(SUFFIXES)


def read_memory_snapshot(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> MemorySnapshot:
    """Read a snapshot, or the bare list of segments that old versions of PyTorch gave.

    Raises TraceError where the file is none, is damaged, asks for Python objects, or is too large. Memory
    stays below the limits of `memory_machine` whatever the file holds.
    """
    require_regular(path)
    rows = SnapshotRows()
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise TraceError(path, f"has {size:,} bytes; at most {max_bytes:,} are read.", _SMALLER)
        with path.open("rb") as file:
            top = load_pickle(file, rows)
        return _snapshot(path, top, rows)
    except SnapshotProblem as problem:
        raise TraceError(path, f"{problem}: no memory snapshot that can be read.", _REMEDY) from None
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", "Check the path.") from None


def _snapshot(path: Path, top: object, rows: SnapshotRows) -> MemorySnapshot:
    if isinstance(top, list):
        top = {"segments": top}
    if not isinstance(top, dict) or "segments" not in top:
        raise SnapshotProblem("holds something else than segments and events")
    covered = one_extent(top["segments"], SEGMENT, "segments")
    traces = top.get("device_traces", [])
    if not isinstance(traces, list) or len(traces) > MAX_DEVICES:
        raise SnapshotProblem("has no list of devices' events")
    extents = [one_extent(trace, EVENT, "events") for trace in traces]
    lengths = [end - first for first, end in extents]
    filled = [extent for extent in extents if extent[0] < extent[1]]
    edges = [0, *(end for _, end in filled)]
    # Every row lies in its list, and no list is there twice.
    if covered[1] - covered[0] != rows.row_count(SEGMENT) or covered[0] != 0:
        raise SnapshotProblem("has segments outside of its list of segments")
    if [first for first, _ in filled] != edges[:-1] or edges[-1] != len(rows.events):
        raise SnapshotProblem("has events outside of its lists of events")
    return _columns(
        path, rows, np.repeat(np.arange(len(traces), dtype=np.int32), lengths), top.get("allocator_settings")
    )


def _columns(path: Path, rows: SnapshotRows, device: I32, settings: object) -> MemorySnapshot:
    events, stacks = rows.events, rows.stacks
    action = _view(events.action)
    _add_user_defined(rows, np.flatnonzero(action == MemoryAction.USER_DEFINED), device)
    segments = {name: _view(column) for name, column in rows.segments.items()}
    annotations = {name: _view(column) for name, column in rows.annotations.items()}
    snapshot = MemorySnapshot(
        path=path,
        events=MemoryEvents(
            device=device,
            action=action,
            address=_view(events.address),
            size_bytes=_view(events.size_bytes),
            stream=_view(events.stream),
            time_ns=_times("event", _view(events.time_us)),
            stack=_view(events.stack),
            label=_view(events.label),
        ),
        segments=MemorySegments(**segments),
        blocks=MemoryBlocks(**_with_addresses({n: _view(c) for n, c in rows.blocks.items()}, segments)),
        annotations=MemoryAnnotations(
            device=annotations["device"],
            time_ns=_times("annotation", annotations["time_us"]),
            name=annotations["name"],
            is_start=annotations["is_start"],
        ),
        labels=rows.labels.values,
        frames=stacks.frames,
        stack_offsets=_view(stacks.offsets),
        stack_frames=_view(stacks.members),
        settings=_plain(settings),
    )
    _check(snapshot)
    return snapshot


def _plain(settings: object) -> dict[str, bool | int | float | str]:
    """The allocator's settings; those of a dictionary inside are called `name.key`."""
    found: dict[str, bool | int | float | str] = {}
    for key, value in settings.items() if isinstance(settings, dict) else ():
        inner = value if isinstance(value, dict) else {}
        pairs = [(key, value), *((f"{key}.{k}", v) for k, v in inner.items())]
        found |= {k: v for k, v in pairs[:100] if isinstance(v, (bool, int, float, str))}
    return found


def _view(column: array[int]) -> NDArray[Any]:
    return np.frombuffer(column, np.dtype(column.typecode))


def _times(what: str, time_us: I64) -> I64:
    if len(time_us) and not -1 <= time_us.min() <= time_us.max() <= MAX_TIME_NS // 1000:
        raise SnapshotProblem(f"has an {what} with an impossible time")
    return np.where(time_us < 0, -1, time_us * 1000)


def _add_user_defined(rows: SnapshotRows, found: I64, device: I32) -> None:
    """PyTorch 2.4 and 2.5 wrote annotations as events whose one frame has the stage as its function."""
    stacks, events = rows.stacks, rows.events
    for row in found.tolist():
        first, end = stacks.offsets[events.stack[row]], stacks.offsets[events.stack[row] + 1]
        frame = stacks.frames[stacks.members[first]] if first < end else None
        if frame is not None and frame.function in ("START", "END") and events.time_us[row] >= 0:
            start = frame.function == "START"
            rows.add_annotation(frame.filename, start, events.time_us[row], int(device[row]))


def _with_addresses(
    blocks: dict[str, NDArray[Any]], segments: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Blocks with the addresses that old versions left out: one lies behind the other."""
    address, size = blocks["address"], blocks["size_bytes"]
    if not (address < 0).any() or (size < 0).any():
        return blocks
    filled = segments["end_block"] > segments["first_block"]
    first, end = segments["first_block"][filled], segments["end_block"][filled]
    before = np.concatenate(([0], np.cumsum(size)))[:-1]
    base = np.repeat(segments["address"][filled] - before[first], end - first)
    # Blocks lie in the file in the order of their segments, each in one (see `_check`).
    if len(base) != len(address):
        raise SnapshotProblem("has blocks outside of segments")
    return blocks | {"address": np.where(address < 0, base + before, address)}


def _check(snapshot: MemorySnapshot) -> None:
    """Refuse what cannot be: no figure of such a file could be trusted. Raises SnapshotProblem."""
    events, segments, blocks = snapshot.events, snapshot.segments, snapshot.blocks
    for what, values, most in (
        ("an event's size", events.size_bytes, MAX_BYTES),
        ("an event's address", events.address, MAX_ADDRESS),
        ("a segment's size", segments.size_bytes, MAX_BYTES),
        ("a segment's address", segments.address, MAX_ADDRESS),
        ("a segment's device", segments.device, MAX_DEVICES),
        ("an annotation's device", snapshot.annotations.device, MAX_DEVICES),
        ("a block's size", blocks.size_bytes, MAX_BYTES),
        ("a block's size", blocks.requested_bytes, MAX_BYTES),
        ("a block's address", blocks.address, MAX_ADDRESS),
    ):
        if len(values) and not 0 <= values.min() <= values.max() <= most:
            raise SnapshotProblem(f"has {what} below 0 or beyond {most:,}")
    for sizes in (events.size_bytes, segments.size_bytes, blocks.size_bytes, blocks.requested_bytes):
        # Sums would leave 64 bits.
        if sizes.sum(dtype=np.float64) > 2.0**61:
            raise SnapshotProblem("has sizes that no device's memory can have together")
    order = np.argsort(segments.first_block, kind="stable")
    first, end = segments.first_block[order], segments.end_block[order]
    filled = end > first
    if not np.array_equal(np.concatenate(([0], end[filled])), np.concatenate((first[filled], [len(blocks)]))):
        raise SnapshotProblem("has blocks outside of segments")
    inside = np.repeat(segments.address[order][filled], (end - first)[filled])
    ends = np.repeat((segments.address + segments.size_bytes)[order][filled], (end - first)[filled])
    if (blocks.address < inside).any() or (blocks.address + blocks.size_bytes > ends).any():
        raise SnapshotProblem("has a block that reaches beyond its segment")
