"""A long window is replayed in its first steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.diagnose.whole_case import _of_the_same_steps
from perfdoc.results import Diagnosis
from perfdoc.simulator.replay import first_steps as module
from perfdoc.simulator.replay import unedited
from perfdoc.simulator.replay.first_steps import cut, first_steps, until
from perfdoc.simulator.replay.predict import predict
from perfdoc.simulator.replay.rebuilt import OF_TASK, rebuild_rank
from perfdoc.simulator.replay.unedited import replay, replay_and_keep
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.planted.job import KINDS, planted_job
from tests.simulator.scaled import scaled_kernels
from tests.simulator.test_gains import analysed

STEPS = 12
SLOW = replace(KINDS["dp4"], data_ns=2_150_000, steps=STEPS)
MS = 1_000_000


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A capture of each of four ranks: twelve steps, a wait of 2.15 ms for data before each but the first."""
    return planted_job(SLOW).write(tmp_path_factory.mktemp("long"), force=True)


@pytest.fixture(scope="module")
def views(paths: Sequence[Path]) -> list[DeviceView]:
    return [v for path in paths for v in views_of(read_trace(path), planted_job(SLOW).facts())]


def test_numba_is_told_of_five_runs_before_the_first(
    views: list[DeviceView], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank as it is and with a few changes: five times its three columns of tasks and two of edges."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(unedited, "expect", lambda graph, runs: told.append((len(graph.duration_ns), runs)))
    found = replay_and_keep(views[0])
    assert found is not None
    assert found.rebuilt is not None
    assert told == [(len(found.rebuilt.start_ns), 5)]


def limited(monkeypatch: pytest.MonkeyPatch, most: int, replayed: int) -> None:
    monkeypatch.setattr(unedited, "KEPT_TASKS_MAX", most)
    monkeypatch.setattr(module, "REPLAYED_TASKS", replayed)


def long_job(paths: Sequence[Path], monkeypatch: pytest.MonkeyPatch, steps: float) -> Diagnosis:
    """Where a rank may hold three quarters of its tasks, and as many are replayed as these steps hold."""
    whole = replay_and_keep(views_of(read_trace(paths[0]), planted_job(SLOW).facts())[0])
    assert whole is not None
    limited(monkeypatch, whole.replay.tasks * 3 // 4, int(steps * whole.replay.tasks / STEPS))
    return analysed(paths, planted_job(SLOW).facts())


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_bands_of_parts_hold_what_the_window_gains(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    whole = {p.key: p for p in analysed(paths, planted_job(SLOW).facts()).analyses.gains.predictions}
    monkeypatch.setattr(module, "FEWEST_STEPS", 1)
    found = long_job(paths, monkeypatch, steps + 0.5)
    assert found.analyses.replay.job is not None
    assert found.analyses.replay.job.steps == steps
    predicted = 0
    for p in found.analyses.gains.predictions:
        if p.gain.method == "replay" and (mid := whole[p.key].mid_ns):
            assert p.low_ns is not None
            assert p.high_ns is not None
            assert p.low_ns <= mid <= p.high_ns, (p.key, p.low_ns, mid, p.high_ns)
            predicted += 1
    assert predicted >= 3


@pytest.mark.parametrize("steps", [1, 4])
def test_the_first_work_of_the_next_step_is_the_end_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Every step begins with a GEMM of 20 ms, which takes nothing of the steps before it: they take as long
    as they are, and GEMMs twice as fast gain what they gain in the whole window."""
    spec = replace(KINDS["dp4"], forward_ns=20 * MS, micro_batches=1, buckets=1, steps=10)
    job = planted_job(spec)
    path = job.write(tmp_path, force=True)[0]
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    (view,) = views_of(read_trace(path), job.facts())
    whole = replay_and_keep(view)
    assert whole is not None
    monkeypatch.setattr(module, "FEWEST_STEPS", 1)
    limited(monkeypatch, whole.replay.tasks * 3 // 4, int((steps + 0.5) * whole.replay.tasks / 10))
    part = replay_and_keep(view)
    assert part is not None
    assert part.replay.steps == steps
    assert part.replay.measured_ns == view.window.step_list[steps - 1].end_ns - view.window.start_ns
    assert whole.rebuilt is not None
    assert part.rebuilt is not None
    faster = scaled_kernels(KernelClass.GEMM, 0.5)
    found, wanted = (predict(k.rebuilt, k.replay, [faster]) for k in (part, whole) if k.rebuilt is not None)
    assert found.mid_ms == pytest.approx(wanted.mid_ms, rel=0.01)
    assert wanted.mid_ms is not None
    assert wanted.mid_ms > 10


def test_short_windows_and_large_steps_stay_whole(views: list[DeviceView]) -> None:
    view = views[0]
    count = len(rebuild_rank(view).start_ns)
    assert first_steps(view, 2 * count) is view
    assert first_steps(view, count // STEPS // 2) is view
    bare = replace(view, window=replace(view.window, kind="capture", steps=0, step_list=[]))
    assert first_steps(bare, 10) is bare


@pytest.mark.parametrize("steps", [1, 5, 11, 12])
def test_cut_is_what_those_steps_are_rebuilt_to(views: list[DeviceView], steps: int) -> None:
    """Nothing in the planted job depends on a median over all steps."""
    for view in views:
        window = view.window
        end_ns = window.step_list[steps - 1].end_ns + (steps < STEPS)  # with the first work of the next
        short = replace(
            view,
            window=replace(
                window,
                end_ns=end_ns,
                duration_ns=end_ns - window.start_ns,
                steps=steps,
                step_list=window.step_list[:steps],
            ),
            step_ranges=replace(
                view.step_ranges,
                start_ns=view.step_ranges.start_ns[:steps],
                end_ns=view.step_ranges.end_ns[:steps],
            ),
        )
        wanted = rebuild_rank(short)
        if steps < STEPS:
            wanted = until(wanted, int(view.step_ranges.start_ns[steps]))
        found = cut(rebuild_rank(view), steps)
        assert found is not None
        assert replay(found) == replay(wanted)
        for name in OF_TASK:
            if name not in ("call", "bytes"):
                assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
        a, b = found.ranks[0], wanted.ranks[0]
        assert (a.step_starts_ns, a.step_ends_ns, a.window_end_ns) == (
            b.step_starts_ns,
            b.step_ends_ns,
            b.window_end_ns,
        )
        assert np.array_equal(a.passes.start_ns, b.passes.start_ns)
        assert a.host["data"].total_ns == b.host["data"].total_ns


def test_ranks_whose_windows_begin_at_other_steps(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first steps are not the same ones: nothing is predicted of them together."""
    job = planted_job(SLOW)
    views = [v for path in paths for v in views_of(read_trace(path), job.facts())]
    whole = replay_and_keep(views[0])
    assert whole is not None
    limited(monkeypatch, whole.replay.tasks * 3 // 4, whole.replay.tasks // 3)
    kept = [k for v in views if (k := replay_and_keep(v)) is not None]
    assert {k.replay.window_steps for k in kept} == {STEPS}
    same = _of_the_same_steps(kept, ["step 3"] * 4)
    assert all(k.rebuilt is not None for k in same)
    apart = _of_the_same_steps(kept, ["step 3", "step 4", "step 3", "step 3"])
    assert all(k.rebuilt is None for k in apart)
    no_steps = [replace(kept[0], replay=replace(kept[0].replay, steps=0, window_steps=None)), *kept[1:]]
    assert _of_the_same_steps(no_steps, ["", "", "", ""]) == no_steps
    one_too_large = [*kept[:3], replace(kept[3], rebuilt=None)]
    assert all(k.rebuilt is None for k in _of_the_same_steps(one_too_large, ["step 3"] * 4))
    fewer = replace(kept[0], replay=replace(kept[0].replay, steps=2))
    assert {k.replay.steps for k in _of_the_same_steps([fewer, *kept[1:]], [""] * 4)} == {2}
