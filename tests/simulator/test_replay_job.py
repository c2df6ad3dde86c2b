"""Ranks of a job in one graph: planted jobs, and two ranks by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.engine.schedule import topological_order
from perfdoc.simulator.replay.edits.edit import with_durations
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.planted.job import KINDS, planted_job
from tests.simulator.rebuilt_of import job_of, planted

CLOCKS = tuple(
    Clock(session_start_ns=37_000_123 * (i % 3), utc_error_ns=20_000 * i, drift_ppb=drift)
    for i, drift in enumerate((0, 21_000, -13_000, 40_000))
)


@pytest.mark.parametrize(
    "name", some(KINDS, KINDS.keys() - {"tp2_cp2_ep2_pp2", "pp4_vpp2_dp2", "tp2_pp2_dp2"})
)
def test_a_planted_job_replays_as_it_was(name: str, tmp_path: Path) -> None:
    """Durations, launches and waits were laid without chance, so the replay is the measurement, on every
    rank: the bar is 0.1 %."""
    found, rebuilt = planted(KINDS[name], tmp_path)
    assert found.error_frac == pytest.approx(0, abs=1e-3)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)
    assert found.predicts
    windows = [r.window_end_ns - r.window_start_ns for r in planted_job(KINDS[name]).answer.ranks]
    assert [r.measured_ns for r in found.ranks] == windows
    assert sum(found.critical_path.values()) == found.replayed_ns
    assert int((rebuilt.graph.kind == TaskKind.MEETING).sum()) > 0
    # On the job's time nothing is below 0, which stands for a launch that is not known.
    assert (rebuilt.launch_ns[rebuilt.graph.kind == TaskKind.COMPUTE] >= 0).all()


def test_steps_that_some_ranks_lack_are_steps_of_the_job(tmp_path: Path) -> None:
    """Of three steps the first rank has all but the last, the last one all but the first: three, not two."""
    _, rebuilt = planted(replace(KINDS["dp4"], steps=3), tmp_path)
    assert rebuilt.steps == 3
    first, *others, last = rebuilt.ranks
    begin, end = last.step_ends_ns[0], first.step_ends_ns[1]
    first = replace(
        first, window_end_ns=end, step_starts_ns=first.step_starts_ns[:2], step_ends_ns=first.step_ends_ns[:2]
    )
    last = replace(
        last,
        window_start_ns=begin,
        step_starts_ns=last.step_starts_ns[1:],
        step_ends_ns=last.step_ends_ns[1:],
    )
    assert replace(rebuilt, ranks=(first, *others, last)).steps == 3
    assert replace(rebuilt, ranks=(first, last)).steps == 3
    assert replace(rebuilt, ranks=(first,)).steps == replace(rebuilt, ranks=(last,)).steps == 2


def test_clocks_that_drift_change_little(tmp_path: Path) -> None:
    found, _ = planted(replace(KINDS["tp2_dp2"], clocks=CLOCKS), tmp_path)
    assert found.error_frac == pytest.approx(0, abs=1e-3)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)


def test_a_rank_that_comes_late_holds_up_the_others(tmp_path: Path) -> None:
    """100 us more in the first kernel of rank 1's first forward: its next collective meets 100 us later, and
    so does everything behind it on every rank."""
    _, rebuilt = planted(KINDS["dp4"], tmp_path)
    compute = np.flatnonzero((rebuilt.graph.kind == TaskKind.COMPUTE) & (rebuilt.graph.rank == 1))
    first = compute[np.argmin(rebuilt.start_ns[compute])]
    duration = rebuilt.graph.duration_ns.copy()
    duration[first] += 100_000
    edited = with_durations(rebuilt, duration)
    before, after = schedule(rebuilt.graph).end_ns, schedule(edited.graph).end_ns
    for rank in range(4):
        assert rebuilt.spans(after)[rank] - rebuilt.spans(before)[rank] == 100_000


def test_without_a_match_ranks_are_not_joined(shared_traces: Path) -> None:
    """Two ranks that only copy have no collective in common."""
    views = views_of(read_trace(shared_traces / "nsys/host_bound_2gpu_h100.sqlite"))
    found, rebuilt = job_of(views, views[0].facts)
    assert found.state == "not_measured"
    assert found.reason
    assert rebuilt is None


@pytest.mark.parametrize("name", ["ddp_2gpu_rtx3090", "sp_2gpu_before", "sp_2gpu_after"])
def test_real_jobs_are_within_the_bar(shared_traces: Path, name: str) -> None:
    views = views_of(read_trace(shared_traces / f"nsys/{name}.sqlite"))
    found, _ = job_of(views, views[0].facts)
    assert len(found.ranks) == 2
    assert found.worst_error_frac == pytest.approx(0, abs=0.05)


def test_eight_real_ranks(shared_traces: Path) -> None:
    views = [
        v
        for i in range(8)
        for v in views_of(read_trace(shared_traces / f"kineto/dlrm_8gpu_v100_rank{i}.pt.trace.json.gz"))
    ]
    found, rebuilt = job_of(views, views[0].facts)
    assert rebuilt is not None
    assert found.worst_error_frac == pytest.approx(0, abs=0.05)


def test_an_order_is_found_or_a_circle() -> None:
    """3 -> 1 -> 0 and 2 alone; with 0 -> 3 it is a circle."""
    source, target = np.array([3, 1], np.int64), np.array([1, 0], np.int64)
    order = topological_order(4, source, target)
    assert order is not None
    assert order.tolist().index(3) < order.tolist().index(1) < order.tolist().index(0)
    assert topological_order(4, np.append(source, 0), np.append(target, 3)) is None
