"""A memory snapshot of PyTorch's allocator whose free memory lies in pieces."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdoc.simulator.output import placed

MIB = 1 << 20
_BASE = 1 << 40
_SEGMENTS = 40
_SEGMENT_BYTES = 512 * MIB
_HELD_BYTES = 96 * MIB
"""A piece in the middle of each segment that stays allocated."""
_WANTED_BYTES = 640 * MIB
"""What is asked for in the end: more than any free piece."""


@dataclass(frozen=True, kw_only=True)
class FragmentationAnswer:
    """The truth about the snapshot, bytes."""

    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int
    failed_request_bytes: int


def write_fragmented(path: Path, *, device_bytes: int, force: bool = False) -> FragmentationAnswer:
    """Write the snapshot. FileExistsError unless `force`.

    40 segments of 512 MiB, each with one allocation of 96 MiB in the middle that outlives the activations
    on both sides: 20 GiB reserved, 3.75 GiB allocated, 16.25 GiB free and no free piece above 208 MiB, when
    640 MiB are asked for.
    """
    side = (_SEGMENT_BYTES - _HELD_BYTES) // 2
    activation = _stack("/job/model/layer.py", "forward", 88)
    kept = _stack("/job/model/cache.py", "remember", 31)
    events: list[dict[str, Any]] = []
    segments = []
    for number in range(_SEGMENTS):
        base = _BASE + number * _SEGMENT_BYTES
        places = (
            (base, side, activation),
            (base + side, _HELD_BYTES, kept),
            (base + side + _HELD_BYTES, side, activation),
        )
        events += [
            _event("alloc", at, size, stack, len(events) + i) for i, (at, size, stack) in enumerate(places)
        ]
        free = {"state": "inactive", "requested_size": 0, "frames": []}
        segments.append(
            {
                "device": 0,
                "address": base,
                "total_size": _SEGMENT_BYTES,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {"address": base, "size": side, **free},
                    {"address": base + side, "size": _HELD_BYTES, "requested_size": _HELD_BYTES,
                     "state": "active_allocated", "frames": kept},
                    {"address": base + side + _HELD_BYTES, "size": side, **free},
                ],
            }
        )  # fmt: skip
    for number in range(_SEGMENTS):
        base = _BASE + number * _SEGMENT_BYTES
        for at in (base, base + side + _HELD_BYTES):
            for action in ("free_requested", "free_completed"):
                events.append(_event(action, at, side, activation, len(events)))
    reserved = _SEGMENTS * _SEGMENT_BYTES
    left = min(_WANTED_BYTES // 2, max(device_bytes - reserved, 0))
    oom = _event("oom", left, _WANTED_BYTES, activation, len(events))
    oom["device_free"] = oom.pop("addr")
    events.append(oom)
    content = {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1},
        "external_annotations": [],
    }
    with placed(Path(path), force=force) as scratch, scratch.open("wb") as file:
        pickle.dump(content, file, 4)
    return FragmentationAnswer(
        reserved_bytes=reserved,
        allocated_bytes=_SEGMENTS * _HELD_BYTES,
        free_bytes=reserved - _SEGMENTS * _HELD_BYTES,
        largest_free_bytes=side,
        failed_request_bytes=_WANTED_BYTES,
    )


def _stack(path: str, function: str, line: int) -> list[dict[str, Any]]:
    return [{"name": function, "filename": path, "line": line}]


def _event(action: str, address: int, size: int, stack: list[dict[str, Any]], number: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1_000_000 + 10 * number,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": stack,
    }
