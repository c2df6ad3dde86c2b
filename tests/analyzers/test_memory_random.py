"""Random histories of a small caching allocator, whose state is known at every moment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from tests.amount import tries
from tests.analyzers.memory_planted import CALL, ENGINE, FORWARD, MIB, SCRIPT, Planted

SIZES = (1, 512, 600, 100_000, MIB, MIB + 1, 3 * MIB + 7, 9 * MIB, 10 * MIB, 12 * MIB + 5, 31 * MIB)
STACKS = ((), (FORWARD, CALL), (ENGINE,), (SCRIPT,))


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"


@dataclass
class Segment:
    address: int
    size: int
    blocks: list[Block]

    @property
    def is_empty(self) -> bool:
        return all(block.state == "inactive" for block in self.blocks)


@dataclass(frozen=True)
class State:
    allocated: int
    reserved: int
    pending: int
    split: int
    cached: int
    largest_free: int


class TinyAllocator:
    """PyTorch's rules: sizes of 512 bytes, segments of 2 MiB, 20 MiB or more, a rest over 1 MiB split off."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.planted = Planted()
        self.states = [self.state()]
        self._next = 1 << 40

    def event(self, action: str, address: int, size: int, stack: int = 0) -> None:
        self.planted.event(action, address, size, STACKS[stack])
        self.states.append(self.state())

    def blocks(self, state: str) -> list[Block]:
        return [b for s in self.segments for b in s.blocks if b.state == state]

    def state(self) -> State:
        free = [b for s in self.segments if not s.is_empty for b in s.blocks if b.state == "inactive"]
        cached = [s.size for s in self.segments if s.is_empty]
        return State(
            allocated=sum(b.requested for b in self.blocks("active_allocated")),
            reserved=sum(s.size for s in self.segments),
            pending=sum(b.requested for b in self.blocks("active_pending_free")),
            split=sum(b.size for b in free),
            cached=sum(cached),
            largest_free=max([*(b.size for b in free), *cached], default=0),
        )

    def alloc(self, requested: int, stack: int) -> None:
        size = -(-requested // 512) * 512
        small = size <= MIB
        fits = [
            (b.size, s.address, i, s)
            for s in self.segments
            if (s.size == 2 * MIB) == small
            for i, b in enumerate(s.blocks)
            if b.state == "inactive" and b.size >= size
        ]
        if fits:
            _, _, index, segment = min(fits, key=lambda fit: fit[:3])
        else:
            length = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            segment, index = Segment(self._next, length, [Block(self._next, length)]), 0
            self._next += 64 * MIB
            self.segments.append(segment)
            self.event("segment_alloc", segment.address, length, stack)
        block = segment.blocks[index]
        if block.size - size >= 512 if small else block.size - size > MIB:
            segment.blocks.insert(index + 1, Block(block.address + size, block.size - size))
            block.size = size
        block.requested, block.state = requested, "active_allocated"
        self.event("alloc", block.address, requested, stack)

    def request_free(self, block: Block, stack: int) -> None:
        block.state = "active_pending_free"
        self.event("free_requested", block.address, block.requested, stack)

    def complete(self, block: Block, stack: int) -> None:
        segment = next(s for s in self.segments if block in s.blocks)
        address, requested, block.state = block.address, block.requested, "inactive"
        merged: list[Block] = []
        for each in segment.blocks:
            if merged and merged[-1].state == each.state == "inactive":
                merged[-1].size += each.size
            else:
                merged.append(each)
        segment.blocks = merged
        self.event("free_completed", address, requested, stack)

    def empty_cache(self, stack: int) -> None:
        for segment in [s for s in self.segments if s.is_empty]:
            self.segments.remove(segment)
            self.event("segment_free", segment.address, segment.size, stack)


OPS = st.tuples(st.sampled_from("aaaaaffdce"), st.integers(0, 1 << 16), st.integers(0, len(STACKS) - 1))


@settings(max_examples=tries(40, 300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(OPS, min_size=1, max_size=60), lost_frac=st.floats(0, 1))
def test_every_figure_of_a_random_history(
    tmp_path: Path, ops: list[tuple[str, int, int]], lost_frac: float
) -> None:
    model = TinyAllocator()
    for kind, number, stack in ops:
        live, pending = model.blocks("active_allocated"), model.blocks("active_pending_free")
        if kind == "a":
            model.alloc(SIZES[number % len(SIZES)], stack)
        elif kind in "fd" and live:
            block = live[number % len(live)]
            model.request_free(block, stack)
            if kind == "f":
                model.complete(block, stack)
        elif kind == "c" and pending:
            model.complete(pending[number % len(pending)], stack)
        elif kind == "e":
            model.empty_cache(stack)
    events = model.planted.traces.setdefault(0, [])
    # The ring buffer has lost the first events.
    lost = int(lost_frac * len(events))
    del events[:lost]
    states = model.states[lost:]
    for segment in model.segments:
        blocks = [(b.size, b.requested, b.state) for b in segment.blocks]
        model.planted.segment(segment.address, segment.size, blocks)
    measured = measure_snapshot(model.planted.write(tmp_path / "m.pickle"))
    if not events:
        assert all(m.state == "not_measured" for m in measured)
        return
    (m,) = measured
    peak = max(state.allocated for state in states)
    at = next(i for i, state in enumerate(states) if state.allocated == peak)
    assert m.notes == []
    assert m.start_allocated_bytes == states[0].allocated
    assert m.peak_allocated_bytes == peak
    assert m.end_allocated_bytes == states[-1].allocated
    assert m.peak_reserved_bytes == max(state.reserved for state in states)
    assert m.peak_time_ns == (events[at - 1]["time_us"] * 1000 if at else None)
    assert m.composition is not None
    assert sum(m.composition.category_bytes.values()) == peak
    assert m.series is not None
    parts = m.series.category_bytes.values()
    assert [sum(column[i] for column in parts) for i in range(len(states))] == [s.allocated for s in states]
    assert list(m.series.reserved_bytes) == [s.reserved for s in states]
    assert sum(site.bytes for site in m.sites) == peak
    layout, truth = m.layout, states[at]
    assert layout is not None
    assert layout.state == "measured", layout.reason
    assert layout.allocated_bytes == truth.allocated
    assert layout.reserved_bytes == truth.reserved
    assert layout.pending_free_bytes == truth.pending
    assert layout.inactive_split_bytes == truth.split
    assert layout.cached_bytes == truth.cached
    assert layout.largest_free_block_bytes == truth.largest_free
    assert layout.rounding_bytes == (
        truth.reserved - truth.allocated - truth.pending - truth.split - truth.cached
    )
