"""How the segments were divided at one moment: what of the reserved memory was in use, and what was not.

A snapshot shows the blocks at its end only. Earlier layouts follow from it: segments by taking the later
segment events back, blocks from the allocations alive at the moment. A block can be larger than the
allocation in it: sizes are rounded up to 512 bytes, and the rest of a large block is only split off where it
is over 1 MiB (PyTorch's CUDACachingAllocator; with expandable segments it always is).
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.memory.lifetimes import DeviceHistory, Lifetimes
from perfdoc.records import dataclass
from perfdoc.results.memory import MemoryLayout
from perfdoc.traces.memory.model import BlockState, MemoryAction
from perfdoc.traces.table import I64, Bool

ROUND_BYTES = 512
LARGE_REMAINDER_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
"""Segments for requests of up to 1 MiB have just this size; others are larger."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pieces:
    """Disjoint pieces of address space, by address."""

    start: I64
    end: I64
    merges: Bool
    """Of an expandable segment."""


def reserved_bytes(history: DeviceHistory) -> I64 | None:
    """Bytes of all segments at each position, element 0 before the first event.

    From the segments at the end backwards. None where that gives less than nothing: the recording left
    segment events out, or had stopped long before the snapshot.
    """
    events, segments = history.snapshot.events, history.snapshot.segments
    action, size = events.action[history.events], events.size_bytes[history.events]
    grows = (action == MemoryAction.SEGMENT_ALLOC) | (action == MemoryAction.SEGMENT_MAP)
    shrinks = (action == MemoryAction.SEGMENT_FREE) | (action == MemoryAction.SEGMENT_UNMAP)
    so_far = np.concatenate(([0], np.cumsum(np.where(grows, size, 0) - np.where(shrinks, size, 0))))
    reserved: I64 = int(segments.size_bytes[history.segments].sum()) - so_far[-1] + so_far
    return reserved if reserved.min() >= 0 else None


def layout_at(
    history: DeviceHistory, lifetimes: Lifetimes, position: int, reserved: I64 | None
) -> MemoryLayout:
    """The layout behind event `position`. reserved: as `reserved_bytes` gives it."""
    alive = np.flatnonzero(lifetimes.alive_at(position))
    allocated = int(lifetimes.size_bytes[alive].sum())
    total = int(reserved[position + 1]) if reserved is not None else None
    segments = _segments_at(history, position)
    if total is None or segments is None or int((segments.end - segments.start).sum()) != total:
        return _no_layout("the segment events do not agree with the segments at the end", allocated, None)
    if settings := _odd_settings(history):
        return _no_layout(f"{settings} makes blocks of other sizes than the history tells", allocated, total)
    pending_start, pending_size = _pending_at(history, position, lifetimes.without_requests)
    held = lifetimes.held_bytes[alive]
    rounded = -(-lifetimes.size_bytes[alive] // ROUND_BYTES) * ROUND_BYTES
    start = np.concatenate((lifetimes.address[alive], pending_start))
    size = np.concatenate((np.where(held >= 0, held, rounded), -(-pending_size // ROUND_BYTES) * ROUND_BYTES))
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + size)[order]
    inside = np.searchsorted(segments.start, start, "right") - 1
    if (
        (len(start) and (not len(segments.start) or inside.min() < 0))
        or (end > segments.end[inside]).any()
        or (start[1:] < end[:-1]).any()
    ):
        return _no_layout("allocations overlap, or lie outside of segments", allocated, total)

    # Free pieces: in front of each busy one, behind the last one of a segment, and whole empty segments.
    first = np.ones(len(start), bool)
    first[1:] = inside[1:] != inside[:-1]
    front = start - np.where(first, segments.start[inside], np.append(0, end)[:-1])
    last = np.append(first[1:], True)[: len(first)]
    behind = segments.end[inside[last]] - end[last]
    pieces = np.concatenate((front, behind))
    segment = np.concatenate((inside, inside[last]))
    whole = (segments.end - segments.start)[np.bincount(inside, minlength=len(segments.start)) == 0]
    large = (segments.end - segments.start)[segment] > SMALL_SEGMENT_BYTES
    unsplit = large & ~segments.merges[segment] & (pieces <= LARGE_REMAINDER_BYTES)
    split = pieces[~unsplit]
    pending = int(pending_size.sum())
    return MemoryLayout(
        state="measured",
        reason="",
        allocated_bytes=allocated,
        rounding_bytes=int(size.sum()) - allocated - pending + int(pieces[unsplit].sum()),
        pending_free_bytes=pending,
        inactive_split_bytes=int(split.sum()),
        cached_bytes=int(whole.sum()),
        reserved_bytes=total,
        largest_free_block_bytes=int(max(split.max(initial=0), whole.max(initial=0))),
    )


def _segments_at(history: DeviceHistory, position: int) -> _Pieces | None:
    """The segments behind an event; None where the events contradict the segments at the end."""
    snapshot = history.snapshot
    later = snapshot.events.take(slice(history.first + position + 1, history.end))
    at_end = snapshot.segments.take(history.segments)
    fixed = at_end.take(~at_end.is_expandable)
    # The first event of an address says whether the segment was there.
    row = np.flatnonzero(
        (later.action == MemoryAction.SEGMENT_ALLOC) | (later.action == MemoryAction.SEGMENT_FREE)
    )
    address, index = np.unique(later.address[row], return_index=True)
    was_there = later.action[row[index]] == MemoryAction.SEGMENT_FREE
    stays = ~np.isin(fixed.address, address)
    start = np.concatenate((fixed.address[stays], address[was_there]))
    size = np.concatenate((fixed.size_bytes[stays], later.size_bytes[row[index]][was_there]))

    grown = at_end.take(at_end.is_expandable)
    mapped, unmapped = (
        np.flatnonzero(later.action == action)
        for action in (MemoryAction.SEGMENT_MAP, MemoryAction.SEGMENT_UNMAP)
    )
    more_start, more_end = _covered(
        np.concatenate((grown.address, later.address[unmapped], later.address[mapped])),
        np.concatenate((grown.size_bytes, later.size_bytes[unmapped], later.size_bytes[mapped])),
        np.concatenate((np.ones(len(grown) + len(unmapped), np.int64), np.full(len(mapped), -1))),
    )
    order = np.argsort(np.concatenate((start, more_start)), kind="stable")
    start_all = np.concatenate((start, more_start))[order]
    end_all = np.concatenate((start + size, more_end))[order]
    if (start_all[1:] < end_all[:-1]).any():
        return None
    merges = np.concatenate((np.zeros(len(start), bool), np.ones(len(more_start), bool)))[order]
    return _Pieces(start=start_all, end=end_all, merges=merges)


def _covered(start: I64, size: I64, weight: I64) -> tuple[I64, I64]:
    """Where the weights of the pieces over an address sum to more than 0, as merged pieces."""
    edge = np.concatenate((start, start + size))
    change = np.concatenate((weight, -weight))
    place, inverse = np.unique(edge, return_inverse=True)
    step = np.zeros(len(place), np.int64)
    np.add.at(step, inverse, change)
    covered = np.cumsum(step) > 0
    begins = covered & ~np.append(False, covered)[:-1]
    ends = ~covered & np.append(False, covered)[:-1]
    return place[begins], place[ends]


def _pending_at(history: DeviceHistory, position: int, without_requests: bool) -> tuple[I64, I64]:
    """Address and size of the memory whose free had been requested by then and was not complete."""
    snapshot = history.snapshot
    events = snapshot.events.take(history.events)
    later = events.take(slice(position + 1, None))
    # The first later event of an address that is a completion, not of memory allocated or asked back later.
    row = np.flatnonzero(
        (later.action == MemoryAction.ALLOC)
        | (later.action == MemoryAction.FREE_REQUESTED)
        | (later.action == MemoryAction.FREE_COMPLETED)
    )
    address, index = np.unique(later.address[row], return_index=True)
    first = row[index]
    completes = later.action[first] == MemoryAction.FREE_COMPLETED
    if without_requests:
        completes = np.zeros(len(first), bool)  # then a completion is the free itself
    blocks = snapshot.blocks.take(history.blocks)
    still = (blocks.state == BlockState.PENDING_FREE) & ~np.isin(blocks.address, address)
    return (
        np.concatenate((address[completes], blocks.address[still])),
        np.concatenate((later.size_bytes[first][completes], blocks.requested_bytes[still])),
    )


def _odd_settings(history: DeviceHistory) -> str:
    """The setting of the allocator, if any, with which blocks are not cut as described above."""
    settings = history.snapshot.settings
    if isinstance(most := settings.get("max_split_size", -1), int) and most not in (-1, (1 << 64) - 1):
        return "max_split_size_mb"
    if any(key.startswith("roundup_power2_divisions") and value for key, value in settings.items()):
        return "roundup_power2_divisions"
    return ""


def _no_layout(reason: str, allocated: int, reserved: int | None) -> MemoryLayout:
    return MemoryLayout(
        state="not_measured", reason=reason, allocated_bytes=allocated, reserved_bytes=reserved
    )
