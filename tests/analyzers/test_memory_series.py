"""Allocated memory over time."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.memory.composition import MAX_MOMENTS
from perfdoc.analyzers.memory.snapshot import measure_snapshot
from tests.analyzers.memory_planted import CALL, ENGINE, FORWARD, MIB, SCRIPT, Planted


def test_by_hand(tmp_path: Path) -> None:
    # An activation of 2 MiB comes, then 1 MiB of nothing known, then the activation goes. Each event is 10 us
    # after the one before (1 us is the planter's own step, the rest is set here).
    planted = Planted()
    planted.event("segment_alloc", 1 << 40, 20 * MIB)
    planted.event("alloc", 1 << 40, 2 * MIB, (FORWARD, CALL))
    planted.event("alloc", (1 << 40) + 2 * MIB, MIB, ())
    planted.event("free_requested", 1 << 40, 2 * MIB, (SCRIPT,))
    planted.event("free_completed", 1 << 40, 2 * MIB, (SCRIPT,))
    (found,) = measure_snapshot(planted.write(tmp_path / "m.pickle"))
    series = found.series
    assert series is not None
    assert series.event == [-1, 0, 1, 2, 3, 4]
    total = [sum(parts) for parts in zip(*series.category_bytes.values(), strict=True)]
    assert total == [0, 0, 2 * MIB, 3 * MIB, MIB, MIB]
    assert series.peak == 3
    assert series.category_bytes["activations"] == [0, 0, 2 * MIB, 2 * MIB, 0, 0]
    assert series.category_bytes["unknown"] == [0, 0, 0, MIB, MIB, MIB]
    assert set(series.category_bytes) == {"activations", "unknown"}
    steps = [b - a for a, b in zip(series.time_ns[1:], series.time_ns[2:], strict=False)]
    assert series.time_ns[:2] == [0, 0]
    assert len(set(steps)) == 1
    assert steps[0] > 0


def test_many_events_are_few_moments_with_the_peak_among_them(tmp_path: Path) -> None:
    planted = Planted()
    planted.event("segment_alloc", 1 << 40, 20_000 * MIB)
    for i in range(3_000):
        planted.event("alloc", (1 << 40) + i * MIB, MIB - i, (ENGINE,))
        if i == 1_234:
            planted.event("alloc", (1 << 41), 5 * MIB, (SCRIPT,))
            planted.event("free_requested", (1 << 41), 5 * MIB)
        if i % 2:
            planted.event("free_requested", (1 << 40) + i * MIB, MIB - i)
    (found,) = measure_snapshot(planted.write(tmp_path / "m.pickle"))
    series = found.series
    assert series is not None
    assert len(series.event) <= MAX_MOMENTS
    at_peak = {
        name: values[series.peak] for name, values in series.category_bytes.items() if values[series.peak]
    }
    assert found.composition is not None
    assert at_peak == {n: v for n, v in found.composition.category_bytes.items() if v}
    totals = [sum(parts) for parts in zip(*series.category_bytes.values(), strict=True)]
    assert max(totals) == totals[series.peak] == found.peak_allocated_bytes
    assert (totals[0], totals[-1]) == (found.start_allocated_bytes, found.end_allocated_bytes)
