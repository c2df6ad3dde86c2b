"""Memory of a job: peak, layout, growth and ranges, from snapshots whose answer is worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.memory.job import job_memory
from perfdoc.analyzers.memory.snapshot import MemoryFiles, measure_rank_memory, measure_snapshot
from tests.analyzers.memory_planted import (
    ADAM,
    CALL,
    ENGINE,
    FORWARD,
    GIB,
    LOST,
    MIB,
    SCRIPT,
    US,
    ZERO_GRAD,
    Planted,
    a_step,
    one,
)


def test_the_peak_and_what_it_is_made_of(tmp_path: Path) -> None:
    m = one(a_step(), tmp_path, device_total_bytes=100 * MIB)
    assert (m.state, m.device, m.events, m.notes) == ("measured", 0, 11, [])
    assert m.start_allocated_bytes == 6 * MIB
    assert m.peak_allocated_bytes == 19 * MIB
    assert m.peak_above_start_bytes == 13 * MIB
    assert m.end_allocated_bytes == 18 * MIB
    # The eighth event, at 1,000,000 us and one more for each.
    assert m.peak_time_ns == 1_000_008 * US
    assert m.peak_reserved_bytes == m.end_reserved_bytes == 40 * MIB
    assert m.headroom_bytes == 60 * MIB
    assert m.expandable_segments is False
    assert m.composition is not None
    # W10 outlives the backward, since the optimizer runs while it is there: a gradient. B4 does not.
    assert {k: v // MIB for k, v in m.composition.category_bytes.items()} == {
        "parameters": 0,
        "gradients": 10,
        "optimizer": 0,
        "activations": 4,
        "communication_buffers": 0,
        "other": 1,
        "unknown": 4,
    }
    assert m.composition.state == "partial"
    assert m.composition.before_recording_bytes == 4 * MIB
    assert m.composition.evidence_bytes == {"none": 5 * MIB, "stack": 14 * MIB, "release": 0, "range": 0}


def test_layout_at_the_peak(tmp_path: Path) -> None:
    layout = one(a_step(), tmp_path).layout
    assert layout is not None
    # At the peak P4 |- 10 -| L1 B4 W10 |- 11 -|.
    assert (layout.state, layout.allocated_bytes, layout.reserved_bytes) == ("measured", 19 * MIB, 40 * MIB)
    assert layout.inactive_split_bytes == 21 * MIB
    assert layout.largest_free_block_bytes == 11 * MIB
    assert (layout.rounding_bytes, layout.pending_free_bytes, layout.cached_bytes) == (0, 0, 0)


def test_sites_are_ranked_and_tell_nothing_private(tmp_path: Path) -> None:
    sites = one(a_step(), tmp_path).sites
    assert [(s.function, s.file, s.line, s.bytes // MIB, s.count) for s in sites] == [
        (ENGINE[1][:120], "", None, 14, 2),
        ("(allocated before the recording)", "", None, 4, 1),
        ("entropy", "net/loss.py", 5, 1, 1),
    ]


def test_what_the_release_tells(tmp_path: Path) -> None:
    """Without a stack of its own: freed by zero_grad it was a gradient, by autograd saved for backward."""
    p = Planted()
    p.alloc(GIB + 9 * MIB, MIB)
    p.free(GIB, 2 * MIB, ZERO_GRAD, SCRIPT)
    p.free(GIB + 2 * MIB, 4 * MIB, ENGINE)
    p.free(GIB + 6 * MIB, 3 * MIB, SCRIPT)
    p.free(GIB + 9 * MIB, MIB, ENGINE)
    p.segment(GIB, 20 * MIB, [(20 * MIB, 0, "inactive")])
    m = one(p, tmp_path)
    assert m.peak_allocated_bytes == 10 * MIB
    assert m.composition is not None
    bytes_of = m.composition.category_bytes
    assert (bytes_of["gradients"], bytes_of["activations"], bytes_of["unknown"]) == (
        2 * MIB,
        5 * MIB,
        3 * MIB,
    )
    assert m.composition.evidence_bytes["release"] == 7 * MIB


def test_a_forward_inside_a_backward_makes_gradients_if_they_outlive_it(tmp_path: Path) -> None:
    """The very first stack: autograd's engine calls a forward. Its 1 MiB is there when the script goes on."""
    p = Planted()
    p.alloc(GIB, MIB, FORWARD, ENGINE)
    p.alloc(GIB + MIB, 2 * MIB, SCRIPT)
    blocks = [
        (MIB, MIB, "active_allocated"),
        (2 * MIB, 2 * MIB, "active_allocated"),
        (17 * MIB, 0, "inactive"),
    ]
    p.segment(GIB, 20 * MIB, blocks)
    composition = one(p, tmp_path).composition
    assert composition is not None
    assert {k: v // MIB for k, v in composition.category_bytes.items() if v} == {"gradients": 1, "other": 2}


def test_out_of_memory_and_forced_releases(tmp_path: Path) -> None:
    """8 MiB are wanted with 2 x 5 MiB free in a segment of 20; before, a cached one of 4 is given back."""
    p = Planted()
    p.alloc(GIB, 5 * MIB, FORWARD, CALL)
    p.alloc(GIB + 10 * MIB, 5 * MIB, FORWARD, CALL)
    p.event("segment_free", 3 * GIB, 4 * MIB, (LOST, SCRIPT))
    p.event("segment_alloc", 4 * GIB, 22 * MIB, (LOST, SCRIPT))
    p.alloc(4 * GIB, 22 * MIB, LOST, SCRIPT)
    p.event("oom", 3 * MIB, 8 * MIB, (LOST, SCRIPT))
    p.segment(
        GIB,
        20 * MIB,
        [(5 * MIB, 5 * MIB, s) for s in ("active_allocated", "inactive", "active_allocated", "inactive")],
    )
    p.segment(4 * GIB, 22 * MIB, [(22 * MIB, 22 * MIB, "active_allocated")])
    m = one(p, tmp_path)
    assert m.oom_events == 1
    (failure,) = m.out_of_memory
    assert (failure.requested_bytes, failure.device_free_bytes) == (8 * MIB, 3 * MIB)
    assert (failure.allocated_bytes, failure.reserved_bytes) == (32 * MIB, 42 * MIB)
    assert failure.largest_free_block_bytes == 5 * MIB
    assert (failure.function, failure.file, failure.line) == ("entropy", "net/loss.py", 5)
    assert failure.time_ns == 1_000_006 * US
    assert m.calls is not None
    assert (m.calls.segment_allocations, m.calls.segment_allocated_bytes) == (1, 22 * MIB)
    assert (m.calls.segment_frees, m.calls.segment_freed_bytes) == (1, 4 * MIB)
    assert m.calls.forced_releases == 1
    assert m.peak_reserved_bytes == 42 * MIB


def test_empty_cache_is_no_forced_release(tmp_path: Path) -> None:
    empty_cache = ("/opt/venv/lib/python3.11/site-packages/torch/cuda/memory.py", "empty_cache", 200)
    p = Planted()
    p.event("segment_free", 3 * GIB, 4 * MIB, (empty_cache, SCRIPT))
    p.event("segment_alloc", 4 * GIB, 22 * MIB, (LOST, SCRIPT))
    p.segment(4 * GIB, 22 * MIB, [(22 * MIB, 0, "inactive")])
    m = one(p, tmp_path)
    assert m.calls is not None
    assert m.calls.forced_releases == 0
    # 4 MiB at first, none in between, 22 in the end.
    assert m.peak_reserved_bytes == 22 * MIB
    assert m.peak_time_ns is None


def test_devices_are_apart(tmp_path: Path) -> None:
    p = Planted()
    p.alloc(GIB, MIB, FORWARD, device=1)
    p.alloc(GIB, 3 * MIB, FORWARD, device=3)
    p.segment(GIB, 2 * MIB, [(MIB, MIB, "active_allocated"), (MIB, 0, "inactive")], device=1)
    p.segment(GIB, 20 * MIB, [(3 * MIB, 3 * MIB, "active_allocated"), (17 * MIB, 0, "inactive")], device=3)
    p.segment(GIB, 20 * MIB, [(20 * MIB, 5 * MIB, "active_allocated")], device=4)
    measured = measure_snapshot(p.write(tmp_path / "m.pickle"))
    assert [(m.device, m.state, m.peak_allocated_bytes) for m in measured] == [
        (1, "measured", MIB),
        (3, "measured", 3 * MIB),
        (4, "not_measured", None),
    ]
    without_history = measured[2]
    assert "no history" in without_history.reason
    assert (without_history.end_allocated_bytes, without_history.end_reserved_bytes) == (5 * MIB, 20 * MIB)


def test_contradictions_are_noted_and_unknown_reserved_is_null(tmp_path: Path) -> None:
    p = a_step()
    p.alloc(GIB + 29 * MIB, 3 * MIB, ADAM)  # again, without a free between
    p.alloc(GIB + 33 * MIB, MIB)  # is no block at the end
    p.event("segment_alloc", 9 * GIB, 100 * MIB)  # is no segment at the end
    m = one(p, tmp_path)
    assert len(m.notes) == 3
    assert "contradict" in m.notes[0]
    assert "recording had stopped" in m.notes[1]
    assert m.peak_reserved_bytes is None
    assert m.layout is not None
    assert (m.layout.state, m.layout.largest_free_block_bytes) == ("not_measured", None)


def test_odd_block_sizes_withhold_the_layout(tmp_path: Path) -> None:
    p = a_step()
    p.settings["roundup_power2_divisions"] = {"1": 0, "256": 4}
    layout = one(p, tmp_path).layout
    assert layout is not None
    assert layout.state == "not_measured"
    assert "roundup_power2_divisions" in layout.reason
    assert layout.reserved_bytes == 40 * MIB


def test_expandable_segments(tmp_path: Path) -> None:
    """One segment grows by 20, 20 and 20 MiB, and the last 20 are given back before the end.

    At the peak 45 of 60 MiB are allocated: 30, a hole of 0.5, 15, and 14.5 free behind. Pieces of up to 1 MiB
    are split off there, so the hole is free and no rest of the block before it.
    """
    p, half = Planted(), MIB // 2
    p.event("segment_map", GIB, 20 * MIB, (SCRIPT,))
    p.event("segment_map", GIB + 20 * MIB, 20 * MIB, (SCRIPT,))
    p.alloc(GIB, 30 * MIB, SCRIPT)
    p.event("segment_map", GIB + 40 * MIB, 20 * MIB, (SCRIPT,))
    p.alloc(GIB + 30 * MIB + half, 15 * MIB, SCRIPT)
    p.free(GIB + 30 * MIB + half, 15 * MIB, SCRIPT)
    p.event("segment_unmap", GIB + 40 * MIB, 20 * MIB, (SCRIPT,))
    blocks = [(30 * MIB, 30 * MIB, "active_allocated"), (10 * MIB, 0, "inactive")]
    p.segment(GIB, 40 * MIB, blocks, is_expandable=True)
    m = one(p, tmp_path)
    assert (m.peak_reserved_bytes, m.end_reserved_bytes) == (60 * MIB, 40 * MIB)
    layout = m.layout
    assert layout is not None
    assert (layout.state, layout.reserved_bytes) == ("measured", 60 * MIB)
    assert layout.rounding_bytes == 0
    assert layout.inactive_split_bytes == 15 * MIB
    assert layout.largest_free_block_bytes == 14 * MIB + half


@pytest.mark.parametrize(
    ("length", "above_start", "reserved"), [("256", "3.73", "8.63"), ("1024", "17.80", "23.45")]
)
def test_real_snapshots(shared_traces: Path, length: str, above_start: str, reserved: str) -> None:
    path = shared_traces / "memory" / f"medium_{length}_training_memory_snapshot.pickle"
    (m,) = measure_snapshot(path)
    assert m.peak_above_start_bytes is not None
    assert m.peak_reserved_bytes is not None
    assert f"{m.peak_above_start_bytes / GIB:.2f}" == above_start
    assert f"{m.peak_reserved_bytes / GIB:.2f}" == reserved
    assert m.notes == []
    assert m.layout is not None
    assert m.layout.state == "measured"
    assert m.composition is not None
    bytes_of = m.composition.category_bytes
    # Parameters and optimizer state were there before the recording; the rest is a forward's.
    assert bytes_of["unknown"] == m.composition.before_recording_bytes == m.start_allocated_bytes
    assert bytes_of["activations"] > 0.97 * m.peak_above_start_bytes


def test_one_rank_with_a_history_is_enough(tmp_path: Path) -> None:
    """Rank 0 recorded a step; rank 1's snapshot has segments and no history."""
    empty = Planted()
    empty.segment(GIB, 20 * MIB, [(20 * MIB, 5 * MIB, "active_allocated")])
    paths = [p.write(tmp_path / f"rank{i}.pickle") for i, p in enumerate((a_step(), empty))]
    ranks = [
        measure_rank_memory(MemoryFiles(rank=i, snapshots=[path], samples=None))
        for i, path in enumerate(paths)
    ]
    assert [[(d.state, d.rank) for d in r.devices] for r in ranks] == [
        [("measured", 0)],
        [("not_measured", 1)],
    ]
    assert all(len(r.sha256[path]) == 64 for r, path in zip(ranks, paths, strict=True))
    both, nothing, none = (job_memory(some) for some in (ranks, ranks[1:], []))
    assert (both.state, both.reason, both.remedy) == ("measured", "", "")
    assert nothing.state == none.state == "not_measured"
    assert "no history" in nothing.reason
    assert none.reason.startswith("No memory snapshot")
    assert nothing.remedy == none.remedy != ""


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


def test_ranges_tell_where_stacks_do_not(tmp_path: Path) -> None:
    """As in a run of perfdoc with Python stacks only: what autograd's own threads allocate has none."""
    p = Planted()
    p.annotate("START", "perfdoc.step 1")
    p.annotate("START", "perfdoc.forward")
    p.alloc(GIB, 5 * MIB)
    p.annotate("END", "perfdoc.forward")
    p.annotate("START", "perfdoc.backward")
    p.alloc(GIB + 5 * MIB, 2 * MIB)
    p.alloc(GIB + 7 * MIB, 3 * MIB)
    p.free(GIB + 5 * MIB, 2 * MIB)
    p.annotate("END", "perfdoc.backward")
    p.annotate("START", "perfdoc.optimizer")
    p.alloc(GIB + 10 * MIB, 1 * MIB)
    p.alloc(GIB + 12 * MIB, 6 * MIB)
    p.annotate("END", "perfdoc.optimizer")
    p.annotate("END", "perfdoc.step 1")
    p.segment(
        GIB,
        20 * MIB,
        [
            (5 * MIB, 5 * MIB, "active_allocated"),
            (2 * MIB, 0, "inactive"),
            (3 * MIB, 3 * MIB, "active_allocated"),
            (2 * MIB, MIB, "active_allocated"),
            (8 * MIB, 6 * MIB, "active_allocated"),
        ],
    )
    m = one(p, tmp_path)
    assert m.peak_allocated_bytes == 15 * MIB
    assert m.composition is not None
    bytes_of = m.composition.category_bytes
    assert (bytes_of["activations"], bytes_of["gradients"]) == (5 * MIB, 3 * MIB)
    assert (bytes_of["optimizer"], bytes_of["unknown"]) == (7 * MIB, 0)
    assert m.composition.state == "measured"
    assert m.composition.range_bytes == {
        "perfdoc.optimizer": 7 * MIB,
        "perfdoc.forward": 5 * MIB,
        "perfdoc.backward": 3 * MIB,
    }
    # The block of 2 MiB holds 1 MiB, that of 8 holds 6.
    assert m.layout is not None
    assert (m.layout.rounding_bytes, m.layout.inactive_split_bytes) == (3 * MIB, 2 * MIB)


@pytest.mark.parametrize("boundary", ["perfdoc.step {}", "ProfilerStep#{}", "Optimizer.step#AdamW.step"])
def test_growth_between_steps(tmp_path: Path, boundary: str) -> None:
    """4 MiB and then 1 MiB more in each step, which nothing frees: 4, 5, 6, 7 at the ends of four steps."""
    p = Planted()
    p.alloc(GIB, 3 * MIB)
    for step in range(4):
        name = boundary.format(step)
        p.annotate("START", name)
        p.alloc(GIB + (3 + step) * MIB, MIB)
        p.alloc(GIB + 10 * MIB, 2 * MIB)
        p.free(GIB + 10 * MIB, 2 * MIB)
        p.annotate("END", name)
    p.alloc(GIB + 10 * MIB, 2 * MIB)
    p.segment(
        GIB,
        20 * MIB,
        [
            (3 * MIB, 3 * MIB, "active_allocated"),
            *[(MIB, MIB, "active_allocated")] * 4,
            (3 * MIB, 0, "inactive"),
            (2 * MIB, 2 * MIB, "active_allocated"),
            (8 * MIB, 0, "inactive"),
        ],
    )
    growth = one(p, tmp_path).growth
    assert (growth.state, growth.boundary) == ("measured", boundary.split(" ")[0].replace("#{}", ""))
    assert growth.allocated_bytes == [4 * MIB, 5 * MIB, 6 * MIB, 7 * MIB]
    assert growth.per_step_bytes == MIB
    assert growth.every_step_grew is True
