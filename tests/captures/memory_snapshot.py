"""A memory snapshot of PyTorch's allocator whose free memory lies in pieces."""

from __future__ import annotations

import pickle
from dataclasses import field
from pathlib import Path
from typing import Any

from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass

MIB = 1 << 20
_BASE = 1 << 40
_SEGMENT_BYTES = 512 * MIB
_HELD_BYTES = 96 * MIB
"""A piece in the middle of each early segment that stays allocated."""
_EARLY_FRAC = 0.54
"""Of all segments. What is allocated later in whole segments is more than what the early ones held, so that
the peak comes when their free pieces are there."""
_WANTED_BYTES = 2048 * MIB
"""What is asked for in the end: more than any free piece, and than what the device has left."""


@dataclass(frozen=True, kw_only=True)
class FragmentationAnswer:
    """The truth about the snapshot, bytes; at its peak, which is its end."""

    reserved_bytes: int
    allocated_bytes: int
    free_in_pieces_bytes: int
    largest_free_bytes: int
    failed_request_bytes: int


@dataclass
class _Events:
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, action: str, address: int, size: int, stack: list[dict[str, Any]]) -> None:
        self.rows.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": 0,
                "time_us": 1_000_000 + 10 * len(self.rows),
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": stack,
            }
        )


def write_fragmented(path: Path, *, device_bytes: int, force: bool = False) -> FragmentationAnswer:
    """Write the snapshot. TraceError where it is there, unless `force`.

    Segments of 512 MiB fill the device but for 1 to 1.5 GiB. Of an 80 GiB device's 158, the first 85 hold one
    allocation of 96 MiB in the middle that outlives the activations on both sides: 34.5 GiB lie free and no
    piece is above 208 MiB. The other 73 are allocated whole, and then 2 GiB are asked for.
    """
    side = (_SEGMENT_BYTES - _HELD_BYTES) // 2
    activation, kept = (
        _stack("/job/model/layer.py", "forward", 88),
        _stack("/job/model/cache.py", "remember", 31),
    )
    count = device_bytes // _SEGMENT_BYTES - 2
    early = int(count * _EARLY_FRAC)
    events, segments = _Events(), []
    bases = [_BASE + number * _SEGMENT_BYTES for number in range(count)]
    for base in bases[:early]:
        events.add("alloc", base, side, activation)
        events.add("alloc", base + side, _HELD_BYTES, kept)
        events.add("alloc", base + side + _HELD_BYTES, side, activation)
    for base in bases[:early]:
        for at in (base, base + side + _HELD_BYTES):
            events.add("free_requested", at, side, activation)
            events.add("free_completed", at, side, activation)
        held = _block(base + side, _HELD_BYTES, kept)
        segments.append(_segment(base, [_block(base, side), held, _block(base + side + _HELD_BYTES, side)]))
    for base in bases[early:]:
        events.add("alloc", base, _SEGMENT_BYTES, activation)
        segments.append(_segment(base, [_block(base, _SEGMENT_BYTES, activation)]))
    reserved = count * _SEGMENT_BYTES
    events.add("oom", device_bytes - reserved, _WANTED_BYTES, activation)
    content = {
        "segments": segments,
        "device_traces": [events.rows],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }
    with whole_file(Path(path), replace=force) as part, part.open("wb") as file:
        pickle.dump(content, file, 4)
    free = early * 2 * side
    return FragmentationAnswer(
        reserved_bytes=reserved,
        allocated_bytes=reserved - free,
        free_in_pieces_bytes=free,
        largest_free_bytes=side,
        failed_request_bytes=_WANTED_BYTES,
    )


def _segment(base: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "device": 0,
        "address": base,
        "total_size": _SEGMENT_BYTES,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, size: int, stack: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A block; free without a stack."""
    state, requested = ("inactive", 0) if stack is None else ("active_allocated", size)
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": stack or [],
    }


def _stack(path: str, function: str, line: int) -> list[dict[str, Any]]:
    return [{"name": function, "filename": path, "line": line}]
