"""Ranges that the program named: what they tell of the peak, and of growth from step to step."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from tests.analyzers.memory_planted import GIB, MIB, US, Planted, a_step, one


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


def test_metadata_of_the_program_goes_before_ranges(tmp_path: Path) -> None:
    p = Planted()
    p.annotate("START", "outer")
    p.event("alloc", GIB, MIB, user_metadata="expert 3\x1b[31m")
    p.annotate("END", "outer")
    p.segment(GIB, 2 * MIB, [(MIB, MIB, "active_allocated"), (MIB, 0, "inactive")])
    m = one(p, tmp_path)
    assert m.composition is not None
    assert m.composition.range_bytes == {"expert 3?[31m": MIB}


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


def test_growth_needs_two_whole_steps_and_one_kind_of_boundary(tmp_path: Path) -> None:
    p = a_step()
    assert one(p, tmp_path).growth.reason == "no range in the snapshot names steps"
    ends = [1_000_003 * US, 1_000_007 * US]
    (m,) = measure_snapshot(p.write(tmp_path / "m.pickle"), step_ends_ns=ends)
    assert m.growth.state == "not_measured"
    (m,) = measure_snapshot(p.write(tmp_path / "m.pickle"), step_ends_ns=[*ends, 1_000_011 * US])
    # Behind the third event 12 MiB, behind the seventh 9, behind the eleventh 18.
    assert m.growth.allocated_bytes == [12 * MIB, 9 * MIB, 18 * MIB]
    assert m.growth.per_step_bytes == 3 * MIB
    assert m.growth.every_step_grew is False
    for name in ("Optimizer.step#A.step", "Optimizer.step#B.step") * 3:
        p.annotate("END", name)
        p.alloc(2 * GIB, 1)
        p.free(2 * GIB, 1)
    assert one(p, tmp_path).growth.state == "not_measured"


def test_ranges_of_one_device_say_nothing_of_another(tmp_path: Path) -> None:
    p = Planted()
    for device, name in ((0, "perfdoc.forward"), (1, "perfdoc.optimizer")):
        p.annotate("START", name, device)
    for device in (0, 1):
        p.alloc(GIB, MIB, device=device)
        p.segment(GIB, 2 * MIB, [(MIB, MIB, "active_allocated"), (MIB, 0, "inactive")], device=device)
    measured = measure_snapshot(p.write(tmp_path / "m.pickle"))
    ranges = [m.composition.range_bytes for m in measured if m.composition is not None]
    assert ranges == [{"perfdoc.forward": MIB}, {"perfdoc.optimizer": MIB}]
