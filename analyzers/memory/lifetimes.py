"""From allocator events to allocations: when each piece of memory came and went, on one device.

Times are positions in the device's list of events, the only order that the allocator vouches for. Position i
is behind event i; -1 is before the first one. The history may begin in the middle, so what was there before
is found in two places: in frees of memory that no event had allocated, and in blocks at the end that no event
touched.
"""

from __future__ import annotations

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.memory.model import BlockState, MemoryAction, MemorySnapshot
from perfdoc.traces.table import I8, I32, I64, Bool

BEFORE = -1
"""Start of what was there when the history began."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifetimes:
    """Every piece of memory that was allocated at any time of a device's history."""

    start: I64
    """Position of the event that allocated it; BEFORE."""
    end: I64
    """Position of the event that freed it; the number of events where it was there to the end."""
    address: I64
    size_bytes: I64
    """As asked for."""
    held_bytes: I64
    """What it took of its segment; -1 where only the blocks at the end would tell."""
    stack: I64
    """Of the call that allocated it; 0 unknown."""
    free_stack: I64
    """Of the call that freed it; 0 unknown, or never freed."""
    events: int
    lost: int
    """Events that contradict one another: an address allocated twice, or freed twice."""
    not_at_the_end: int
    """Allocations that nothing freed and that no block at the end is: the recording stopped before."""
    without_requests: bool
    """Whether the recording left requests to free out (skip_actions), so that completions stand for them."""

    def __len__(self) -> int:
        return len(self.start)

    def alive_at(self, position: int) -> Bool:
        """Which are allocated behind event `position`."""
        alive: Bool = (self.start <= position) & (self.end > position)
        return alive

    def allocated_bytes(self) -> I64:
        """Sum over all at each position from BEFORE on: element 0 is before the first event."""
        change = np.zeros(self.events + 2, np.int64)
        np.add.at(change, self.start + 1, self.size_bytes)
        np.subtract.at(change, self.end + 1, self.size_bytes)
        total: I64 = np.cumsum(change)[: self.events + 1]
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceHistory:
    """One device of a snapshot: its events are rows [first, end) of MemorySnapshot.events."""

    snapshot: MemorySnapshot
    device: int
    first: int
    end: int
    segments: I64
    """Rows of MemorySnapshot.segments."""
    blocks: I64
    """Rows of MemorySnapshot.blocks."""

    @property
    def events(self) -> slice:
        """Rows of the device's events."""
        return slice(self.first, self.end)


def histories(snapshot: MemorySnapshot) -> list[DeviceHistory]:
    """Every device that has events or segments, by ordinal."""
    devices, segments = snapshot.events.device, snapshot.segments
    found = []
    segment_of_block = np.empty(len(snapshot.blocks), np.int64)
    for_block = np.repeat(np.arange(len(segments)), segments.end_block - segments.first_block)
    segment_of_block[_ranges(segments.first_block, segments.end_block)] = for_block
    for device in np.union1d(np.unique(devices), np.unique(segments.device)).tolist():
        mine = segments.device == device
        found.append(
            DeviceHistory(
                snapshot=snapshot,
                device=device,
                first=int(np.searchsorted(devices, device, "left")),
                end=int(np.searchsorted(devices, device, "right")),
                segments=np.flatnonzero(mine),
                blocks=np.flatnonzero(mine[segment_of_block]),
            )
        )
    return found


def _ranges(first: I64, end: I64) -> I64:
    """All of first[0]..end[0]-1, first[1]..end[1]-1 and so on."""
    length = end - first
    before = np.cumsum(length) - length
    flat: I64 = np.arange(int(length.sum())) + np.repeat(first - before, length)
    return flat


def find_lifetimes(history: DeviceHistory) -> Lifetimes:
    """Match allocations with frees by address, and both with the blocks at the end."""
    blocks = history.snapshot.blocks
    events = history.snapshot.events.take(history.events)
    count = len(events)
    position, contradictions, without_requests = _comings_and_goings(events.action, events.address)
    is_alloc = events.action[position] == MemoryAction.ALLOC
    same = _follows_same(events.address[position])

    # An allocation lasts to the next event of its address; a free without an allocation ends an older one.
    start = position[is_alloc]
    end = np.where(np.append(same, False)[1:], np.append(position, count)[1:], count)[is_alloc]
    freed = np.flatnonzero(end < count)
    again = events.action[end[freed]] == MemoryAction.ALLOC
    free_stack = np.zeros(len(start), np.int64)
    free_stack[freed] = np.where(again, 0, events.stack[end[freed]])
    older = position[~is_alloc & ~same]

    in_use = history.blocks[blocks.state[history.blocks] == BlockState.ALLOCATED]
    in_use = in_use[np.argsort(blocks.address[in_use], kind="stable")]
    block = np.full(len(start), -1, np.int64)
    to_the_end = np.flatnonzero(end == count)
    block[to_the_end] = _find(blocks.address[in_use], in_use, events.address[start[to_the_end]])
    untouched = in_use[~np.isin(blocks.address[in_use], events.address[position])]
    own_stack = events.stack[start].astype(np.int64)
    stack = np.where(own_stack == 0, _values(blocks.stack, block, 0), own_stack)

    def column(mine: I64, of_older: I64 | int, of_untouched: I64 | int) -> I64:
        parts = (mine, np.broadcast_to(of_older, len(older)), np.broadcast_to(of_untouched, len(untouched)))
        return np.concatenate([part.astype(np.int64) for part in parts])

    return Lifetimes(
        start=column(start, BEFORE, BEFORE),
        end=column(end, older, count),
        address=column(events.address[start], events.address[older], blocks.address[untouched]),
        size_bytes=column(
            events.size_bytes[start], events.size_bytes[older], blocks.requested_bytes[untouched]
        ),
        held_bytes=column(_values(blocks.size_bytes, block, -1), -1, blocks.size_bytes[untouched]),
        stack=column(stack, 0, blocks.stack[untouched].astype(np.int64)),
        free_stack=column(free_stack, events.stack[older].astype(np.int64), 0),
        events=count,
        lost=contradictions + int(np.count_nonzero(again)),
        not_at_the_end=int(np.count_nonzero(block[to_the_end] < 0)),
        without_requests=without_requests,
    )


def _comings_and_goings(action: I8, address: I64) -> tuple[I64, int, bool]:
    """Positions of the allocations and of what freed them, by address and then in order of time.

    Second, how many frees were left out because the memory was free; third, Lifetimes.without_requests.
    """
    position = np.flatnonzero(
        (action == MemoryAction.ALLOC)
        | (action == MemoryAction.FREE_REQUESTED)
        | (action == MemoryAction.FREE_COMPLETED)
    )
    position = position[np.argsort(address[position], kind="stable")]
    completes = action[position] == MemoryAction.FREE_COMPLETED
    after_alloc = _follows_same(address[position])
    after_alloc[1:] &= action[position[:-1]] == MemoryAction.ALLOC
    without_requests = bool((completes & after_alloc).any()) and not (
        (action == MemoryAction.FREE_REQUESTED).any()
    )
    if not without_requests:
        # A completion says nothing new, except where the request is missing after all.
        position = position[~completes | after_alloc]
    is_free = action[position] != MemoryAction.ALLOC
    twice = _follows_same(address[position]) & is_free
    twice[1:] &= is_free[:-1]
    return position[~twice], int(np.count_nonzero(twice)), without_requests


def _follows_same(address: I64) -> Bool:
    """Whether the one before has the same address."""
    same = np.zeros(len(address), bool)
    same[1:] = address[1:] == address[:-1]
    return same


def _find(sorted_values: I64, rows: I64, wanted: I64) -> I64:
    """For each wanted value the row in which it is; -1 where it is in none."""
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(rows) - 1)
    return np.where(sorted_values[at] == wanted, rows[at], -1)


def _values(column: I64 | I32, rows: I64, default: int) -> I64:
    """Values at rows; the default at -1."""
    found = np.full(len(rows), default, np.int64)
    found[rows >= 0] = column[rows[rows >= 0]]
    return found
