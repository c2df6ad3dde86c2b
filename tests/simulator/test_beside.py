"""What reductions take of the computation beside them on a CPU rank, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.captures.timeline import TimelineBuilder
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.edits import rebucketed
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from tests.analyzers.tiny import trace_of
from tests.simulator.rebuilt_of import views_of

US = 1_000


def step(folder: Path, *, batches: int) -> Rebuilt:
    """Forwards and backwards of 99 us each, 1 us apart, but the last backward takes 129: in it 1000 bytes are
    reduced [20, 40) us after it began and 2000 bytes [70, 100), which is 10 us and 10 ns a byte. Then the
    optimizer, 70 us."""
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    last = 200 * batches - 100
    end = last + 130  # 1 us of it for nothing
    for i in range(batches):
        main.range("perfdoc.forward", 200 * i * US, (200 * i + 99) * US)
        until = end if i == batches - 1 else 200 * i + 200
        main.range("perfdoc.backward", (200 * i + 100) * US, (until - 1) * US)
    for number, (size, begin, took) in enumerate(((1000, 20, 20), (2000, 70, 30))):
        facts = f"all_reduce group=DATA_PARALLEL_GROUP pg=1 bytes={size} seq={number}"
        at = last + begin
        main.range(f"perfdoc.comm.issue {facts}", at * US, at * US)
        backend.range(f"perfdoc.comm.run {facts}", at * US, (at + took) * US, kind="start_end")
    main.range("perfdoc.optimizer", end * US, (end + 70) * US)
    main.range("perfdoc.step 0", 0, (end + 70) * US)
    (view,) = views_of(trace_of(builder, folder))
    return rebuild_rank(view)


def length_ns(rebuilt: Rebuilt) -> int:
    return rebuilt.span(schedule(rebuilt.graph).end_ns)


def test_fewer_reductions_take_less_of_what_runs_beside_them(tmp_path: Path) -> None:
    """Beside 50 us of reductions the last backward computes 30 us longer than the first: 60 %. Together they
    take 10 + 30 us, 10 less, so the pass is 6 us shorter."""
    rebuilt = step(tmp_path, batches=2)
    assert length_ns(rebuilt) == 500 * US
    assert length_ns(rebucketed(3000).apply(rebuilt)) == pytest.approx(494 * US, abs=10)


def test_without_a_pass_to_compare_with_nothing_is_said(tmp_path: Path) -> None:
    """One micro-batch: how long its backward were without reductions is not known."""
    rebuilt = step(tmp_path, batches=1)
    assert length_ns(rebuilt) == 300 * US
    assert length_ns(rebucketed(3000).apply(rebuilt)) == 300 * US
