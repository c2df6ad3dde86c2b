"""Time by the user's own ranges, worked out by hand; whatever is planted, the rows sum to the ledger."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.ledger.steps import build_ledger
from perfdoc.analyzers.tables import range_tree
from perfdoc.analyzers.tables.range_table import MAX_ROWS, range_table
from perfdoc.results.ranks import LEAVES
from perfdoc.results.tables import RangeRow, RangeTable
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder


def table(view: DeviceView, *patterns: str) -> RangeTable:
    window = view.window
    ledger = build_ledger(view.activity, window.start_ns, window.end_ns, view.idle_inputs, view.gaps)
    found = range_table(view, [re.compile(p) for p in patterns], ledger)
    if found.rows:
        sums = {leaf: sum(row.own.by_leaf[leaf] for row in found.rows) for leaf in LEAVES}
        assert sums == ledger.by_leaf
    return found


def by_path(found: RangeTable) -> dict[str, RangeRow]:
    return {"/".join(row.path) or row.kind: row for row in found.rows}


def test_work_goes_to_the_innermost_range_at_launch(tmp_path: Path) -> None:
    """
    Host: outer [0, 100), in it fwd [10, 40) and bwd [50, 90); a kernel is launched in each and one outside.
    Device: fwd's kernel [100, 150), the all-reduce of bwd [140, 180), a copy launched in outer itself
    [190, 200), outside's kernel [230, 250), launched by a call that returns at 225.
    """
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for name, start, end in (("outer", 0, 100), ("fwd", 10, 40), ("bwd", 50, 90)):
        thread.range(name, start, end)
    device.kernel(GEMM, 100, 150, launch=(thread, 20, 22))
    device.kernel(ALL_REDUCE, 140, 180, stream=20, launch=(thread, 60, 62))
    device.copy("host_to_device", 64, 190, 200, launch=(thread, 95, 97))
    device.kernel(GEMM, 230, 250, launch=(thread, 220, 225))
    found = table(view_of(builder, tmp_path), "^outer", "^(fwd|bwd)$")
    rows = by_path(found)
    assert list(rows) == ["outer", "outer/fwd", "outer/bwd", "outside"]
    fwd, bwd, step, outside = (rows[p] for p in ("outer/fwd", "outer/bwd", "outer", "outside"))
    assert (fwd.own.compute, fwd.own.total) == (50, 50)
    # 30 of the 40 are beside no compute.
    assert (bwd.own.exposed_comm.total, bwd.own.total) == (30, 30)
    # [180, 190) is idle before the copy, which was queued: it belongs to the copy's range.
    assert (step.own.exposed_memcpy, step.own.idle.total, step.own.total) == (10, 10, 20)
    # [200, 225) the host was late, outside of the ranges; [225, 230) is launch latency.
    assert (outside.own.compute, outside.own.idle.host, outside.own.idle.launch_latency) == (20, 25, 5)
    assert (step.whole.total, step.whole.compute, step.whole.exposed_comm.total) == (100, 50, 30)
    assert (step.kernels, fwd.kernels, outside.kernels) == (2, 1, 1)
    # From the first launch on, at 20.
    assert (step.count, step.host_ns, fwd.host_ns) == (1, 80, 20)
    assert (step.share_frac, step.matrix_frac, outside.matrix_frac) == (100 / 150, 50 / 70, 20 / 70)


def test_idle_time_of_the_host_goes_to_the_range_that_it_was_in(tmp_path: Path) -> None:
    """The device is idle in [20, 90), the host in `load` [10, 60), then in `fwd` [60, 100), where it launches
    at 80 what begins at 90; the call returns at 85."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("load", 10, 60)
    thread.range("fwd", 60, 100)
    device.kernel(GEMM, 5, 20, launch=(thread, 1, 2))
    device.kernel(GEMM, 90, 100, launch=(thread, 80, 85))
    rows = by_path(table(view_of(builder, tmp_path), "load|fwd"))
    assert (rows["load"].own.idle.host, rows["load"].own.total) == (40, 40)
    assert (rows["fwd"].own.idle.host, rows["fwd"].own.idle.launch_latency) == (25, 5)
    assert (rows["fwd"].own.compute, rows["outside"].own.compute) == (10, 15)


@pytest.mark.parametrize("name", ["pt_autograd_0", "worker"])
def test_the_thread_of_a_backward_pass_works_for_the_one_that_waits(name: str, tmp_path: Path) -> None:
    """A thread that launches only while another is in its backward pass works for it, whatever its name; its
    own range stands inside the other one's."""
    builder = TimelineBuilder()
    process = builder.process()
    main, other, device = process.thread(), process.thread(tid=99, name=name), process.device()
    main.range("backward pass", 0, 50)
    other.range("layer 3", 20, 30)
    other.range("backward of a hook", 27, 28)  # which no other thread works for
    device.kernel(GEMM, 100, 110, launch=(other, 10, 11))
    device.kernel(GEMM, 110, 130, launch=(other, 25, 26))
    rows = by_path(table(view_of(builder, tmp_path), "^backward pass|layer"))
    assert (rows["backward pass"].own.compute, rows["backward pass/layer 3"].own.compute) == (10, 20)
    assert rows["backward pass"].whole.compute == 30


def test_another_thread_is_outside(tmp_path: Path) -> None:
    """A thread that launches in and after a block that is no backward pass works for nobody."""
    builder = TimelineBuilder()
    process = builder.process()
    main, other, device = process.thread(), process.thread(tid=99), process.device()
    main.range("block", 0, 50)
    for i, at in enumerate((10, 60)):
        device.kernel(GEMM, 100 + 10 * i, 110 + 10 * i, launch=(other, at, at + 1))
    rows = by_path(table(view_of(builder, tmp_path), "block"))
    assert rows["outside"].own.compute == 20
    assert rows["block"].own.total == 0


def test_a_group_of_the_pattern_names_the_row(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for i in range(3):
        thread.range(f"layer {i}: mlp", 10 * i, 10 * i + 5)
        device.kernel(GEMM, 100 + 10 * i, 110 + 10 * i, launch=(thread, 10 * i + 1, 10 * i + 2))
    rows = by_path(table(view_of(builder, tmp_path), r"^layer \d+: (mlp|attn)"))
    assert (rows["mlp"].count, rows["mlp"].own.compute) == (3, 30)


def test_very_many_names_share_a_row_and_lose_nothing(tmp_path: Path) -> None:
    count = MAX_ROWS + 40
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    at = 10_000
    for i in range(count):
        thread.range(f"n{i}" + "x" * 1000, 10 * i, 10 * i + 5)
        end = at + (10 if i < 40 else 20)
        device.kernel(GEMM, at, end, launch=(thread, 10 * i + 1, 10 * i + 2))
        at = end
    found = table(view_of(builder, tmp_path), "^n")
    others = [row for row in found.rows if row.kind == "others"]
    assert len(found.rows) == MAX_ROWS + 2
    assert [(row.count, row.kernels, row.own.compute) for row in others] == [(40, 40, 400)]
    assert max(len(name) for row in found.rows for name in row.path) == range_tree.MAX_LABEL


def test_what_is_nested_deep_counts_as_the_range_around_it(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for i in range(40):
        thread.range(f"r{i}", i, 1000 - i)
    device.kernel(GEMM, 1000, 1010, launch=(thread, 500, 501))
    found = table(view_of(builder, tmp_path), "^r")
    (deepest,) = [row for row in found.rows if row.own.compute]
    assert len(deepest.path) == range_tree.MAX_DEPTH
    assert found.rows[0].whole.compute == 10


def test_a_slow_pattern_ends_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("fwd", 0, 10)
    device.kernel(GEMM, 20, 30, launch=(thread, 1, 2))
    view = view_of(builder, tmp_path)
    assert table(view, "nothing").reason == "no range has such a name"
    assert table(view).patterns == []
    monkeypatch.setattr(range_tree, "MAX_SECONDS", -1.0)
    slow = table(view, "fwd")
    assert (slow.state, slow.patterns, slow.rows) == ("not_measured", ["fwd"], [])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_overlaps_the_rows_sum_to_the_ledger(seed: int, tmp_path: Path) -> None:
    """`table` compares the sums; here compute of each range is counted nanosecond by nanosecond too."""
    rng = np.random.default_rng(seed)
    builder = TimelineBuilder()
    process = builder.process()
    threads, device = [process.thread(tid=t) for t in (1000, 1001)], process.device()
    owner = np.full(3_000, -1)
    ends = np.zeros(3_000, np.int64)
    starts = np.zeros(3_000, np.int64)
    for t, thread in enumerate(threads):
        for i in range(6):
            thread.range(f"r{t}{i % 4}", 100 * i, 100 * i + 90)
            thread.range("inner", 100 * i + 20, 100 * i + 50)
    for stream in (7, 8, 9):
        at = 700
        while (at := at + int(rng.integers(1, 60))) < 2_800:
            end = at + int(rng.integers(1, 90))
            t, launch = int(rng.integers(0, 2)), int(rng.integers(0, 600))
            kind = int(rng.integers(0, 4))
            where = (threads[t], launch, launch + 1)
            if kind == 0:
                device.copy("host_to_device", 8, at, end, stream=stream, launch=where)
            else:
                device.kernel(ALL_REDUCE if kind == 1 else GEMM, at, end, stream=stream, launch=where)
            if kind > 1:
                inner = 20 <= launch % 100 < 50
                mine = (t * 10 + launch // 100 % 4) * 2 + inner if launch % 100 < 90 else -2
                span = np.arange(at, end)
                better = (ends[span] < end) | ((ends[span] == end) & (starts[span] > at))
                owner[span[better]], ends[span[better]], starts[span[better]] = mine, end, at
            at = end
    view = view_of(builder, tmp_path)
    rows = by_path(table(replace(view), "^r|inner"))
    for code in range(40):
        path = f"r{code // 2 // 10}{code // 2 % 10}" + ("/inner" if code % 2 else "")
        wanted = int((owner == code).sum())
        assert (rows[path].own.compute if path in rows else 0) == wanted, path
    assert rows["outside"].own.compute == int((owner == -2).sum())
