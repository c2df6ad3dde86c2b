"""Reading a memory snapshot of PyTorch (`torch.cuda.memory._dump_snapshot`) into columns.

A snapshot holds the segments that the caching allocator had at that moment, each cut into blocks, and the
history of its events up to then: a ring buffer, so it may begin in the middle. The file is a pickle: another
process reads it, as plain data and within bounds (`unpickle.py`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.memory import MAX_BYTES
from perfdoc.traces.memory.model import (
    MemoryAnnotations,
    MemoryBlocks,
    MemoryEvents,
    MemoryFrame,
    MemorySegments,
    MemorySnapshot,
)
from perfdoc.traces.memory.unpickle import MAX_DEVICES, SnapshotProblem
from perfdoc.traces.table import I64
from perfdoc.traces.validate import MAX_TIME_NS

MAX_FILE_BYTES = 1 << 30
"""Reading takes 8 GiB then, at most."""
MAX_ADDRESS = 1 << 62

_PROGRAM = Path(__file__).with_name("unpickle.py")
_REMEDY = "Give the file that torch.cuda.memory._dump_snapshot wrote, whole."
_SMALLER = "Record a shorter history: torch.cuda.memory._record_memory_history(max_entries=1000000)."


def read_memory_snapshot(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> MemorySnapshot:
    """Read a snapshot, or the bare list of segments that old versions of PyTorch gave.

    Raises TraceError where the file is none, is damaged, asks for Python objects, or is too large.
    """
    require_regular(path)
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise TraceError(path, f"has {size:,} bytes; at most {max_bytes:,} are read.", _SMALLER)
        with path.open("rb") as file, tempfile.TemporaryFile() as output:
            command = [sys.executable, "-I", str(_PROGRAM)]
            ended = subprocess.run(command, stdin=file, stdout=output, stderr=subprocess.DEVNULL, check=False)
            output.seek(0)
            return _snapshot(path, ended.returncode, output)
    except SnapshotProblem as problem:
        raise TraceError(path, f"{problem}: no memory snapshot that can be read.", _REMEDY) from None
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", "Check the path.") from None


def _snapshot(path: Path, status: int, output: BinaryIO) -> MemorySnapshot:
    """What the other process wrote, which ended with this status."""
    if status == -signal.SIGXCPU:
        raise SnapshotProblem("takes more time to read than a snapshot of its size")
    if status:
        raise SnapshotProblem(f"ends the program that reads it (status {status})")
    header = json.loads(output.readline())
    if "problem" in header:
        raise SnapshotProblem(header["problem"])
    tables: dict[str, dict[str, NDArray[Any]]] = {}
    for name, (typecode, length) in header["columns"].items():
        table, _, column = name.rpartition(".")
        dtype = np.dtype(typecode)
        tables.setdefault(table, {})[column] = np.frombuffer(output.read(length * dtype.itemsize), dtype)
    for table, what in (("events", "event"), ("annotations", "annotation")):
        tables[table]["time_ns"] = _times(what, tables[table].pop("time_us"))
    snapshot = MemorySnapshot(
        path=path,
        events=MemoryEvents(**tables["events"]),
        segments=MemorySegments(**tables["segments"]),
        blocks=MemoryBlocks(**tables["blocks"]),
        annotations=MemoryAnnotations(**tables["annotations"]),
        labels=header["labels"],
        frames=[MemoryFrame(*frame) for frame in header["frames"]],
        settings=header["settings"],
        **tables[""],
    )
    _check(snapshot)
    return snapshot


def _times(what: str, time_us: I64) -> I64:
    if len(time_us) and not -1 <= time_us.min() <= time_us.max() <= MAX_TIME_NS // 1000:
        raise SnapshotProblem(f"has an {what} with an impossible time")
    return np.where(time_us < 0, -1, time_us * 1000)


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
    segment = np.repeat(np.arange(len(segments)), segments.end_block - segments.first_block)
    start, end = segments.address[segment], (segments.address + segments.size_bytes)[segment]
    if (blocks.address < start).any() or (blocks.address + blocks.size_bytes > end).any():
        raise SnapshotProblem("has a block that reaches beyond its segment")
