"""From captures to the diagnosis: the job's replay, predictions of every change, and when there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.analyzers.steps.log import LoggedSteps
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import measure_all
from perfdoc.reports.outline import sections_of
from perfdoc.results import Diagnosis, Prediction, from_json, to_json
from perfdoc.simulator.replay import whole
from perfdoc.simulator.replay.gains import Gains, no_gains, predict_all
from perfdoc.simulator.replay.unedited import KeptRank, replay, replay_and_keep
from perfdoc.simulator.replay.whole import FreeLengths, as_unprofiled, free_lengths
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.planted.job import KINDS, JobSpec, planted_job
from tests.planted.spec import Late
from tests.simulator.test_predict import ledger
from tests.simulator.test_replay_cpu import step as cpu_step

NO_DATA = "remove data-loader stalls (dataloader_num_workers)"
SLOW = replace(KINDS["dp4"], data_ns=2_150_000)


def analysed(paths: Sequence[Path], facts: JobFacts | None = None, *, again: bool = True) -> Diagnosis:
    """The diagnosis, in its serial form and back."""
    request = AnalysisRequest(captures=paths, given=facts or JobFacts(), replay=again)
    return from_json(to_json(diagnose(measure_all(request).captures)))


def of_job(spec: JobSpec, folder: Path) -> Diagnosis:
    job = planted_job(spec)
    return analysed(job.write(folder, force=True), job.facts())


def prediction(found: Diagnosis, key: str) -> Prediction:
    return next(p for p in found.analyses.gains.predictions if p.key == key)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """Three steps; behind two of them every rank waits for its data, 2.15 ms each. The third is left out."""
    return of_job(SLOW, tmp_path_factory.mktemp("slow"))


def test_the_ranks_are_replayed_together(slow: Diagnosis) -> None:
    found = slow.analyses.replay
    assert found.job is not None
    assert (found.job.state, found.job.scope, len(found.job.ranks)) == ("measured", "job", 4)
    assert found.error_frac == found.job.worst_error_frac == pytest.approx(0, abs=1e-3)
    assert found.critical_path == found.job.critical_path
    assert found.job.replayed_ns == sum(found.critical_path.values())
    for part, total in found.critical_path.items():
        assert sum(r.critical_path.get(part, 0) for r in found.job.ranks) == total
    assert [r.name for r in found.job.ranks] == [r.label for r in slow.ranks]
    assert all(r.replay is not None and r.replay.scope == "rank" for r in slow.ranks)


def test_every_change_is_predicted_or_has_its_reason(slow: Diagnosis) -> None:
    """Without data: 2.15 ms a step, 15 % less and more (and 1 us): 1.826 to 2.474. The host's and data's idle
    leaves hold less, but ranks also wait for one another."""
    data = prediction(slow, "without_data")
    assert (data.scope, data.ranks, data.reason) == ("job", 4, "")
    assert (data.low_ns, data.mid_ns, data.high_ns) == (1_826_000, 2_150_000, 2_474_000)
    assert data.step_ns is not None
    assert data.mid_frac == pytest.approx(2_150_000 / data.step_ns)
    assert data.replay_error_frac == pytest.approx(0, abs=1e-3)
    gc = prediction(slow, "without_gc")
    assert (gc.mid_ns, gc.gain.method, gc.reason) == (None, "none", "no range of the capture shows gc")
    for p in slow.analyses.gains.predictions:
        assert (p.gain.method == "replay") == (p.reason == ""), p
        if p.mid_ns is not None and p.low_ns is not None and p.high_ns is not None:
            assert p.low_ns <= p.mid_ns <= p.high_ns


def test_what_gains_is_simulated_together(slow: Diagnosis) -> None:
    both = slow.combined
    assert both is not None
    assert both.gain is not None
    assert both.gain.mid_ms is not None
    assert "without_data" in both.accepted
    alone = [prediction(slow, key).gain.mid_ms or 0.0 for key in both.accepted]
    assert both.gain.mid_ms >= max(alone)


def test_what_is_slower_costs_and_is_not_accepted(slow: Diagnosis) -> None:
    gains = slow.analyses.gains
    worse = replace(
        prediction(slow, "without_data"), low_ns=-9_000_000, mid_ns=-8_000_000, high_ns=-7_000_000
    )
    others = [p for p in gains.predictions if p.key != worse.key]
    found = replace(slow, analyses=replace(slow.analyses, gains=replace(gains, predictions=[*others, worse])))
    (section,) = [s for s in sections_of(found) if s.key == "path"]
    rows = [[c.text for c in row] for row in section.grids[2].rows]
    assert rows[-1][:2] == [NO_DATA, "costs 8.000 ms"]


def test_a_straggler_is_found_and_taken_away(tmp_path: Path) -> None:
    """Rank 2 is 0.4 ms slower in each of 4 forwards of a step, and everybody waits: 1.6 ms per step."""
    found = of_job(replace(KINDS["dp4"], micro_batches=4, late=Late(rank=2, extra_ns=400_000)), tmp_path)
    late = prediction(found, "without_straggler_dp")
    assert late.change == "rank 2 as fast as the rest of its DP group"
    assert late.mid_ns == pytest.approx(1_600_000, rel=0.02)


def test_without_replay_there_is_none_and_it_says_how(tmp_path: Path) -> None:
    job = planted_job(KINDS["dp4"])
    found = analysed(job.write(tmp_path, force=True), job.facts(), again=False)
    assert found.analyses.replay.state == found.analyses.gains.state == "not_measured"
    assert "--no-replay" in found.analyses.gains.remedy
    assert found.combined is None


def test_ranks_that_cannot_be_joined_are_predicted_apart(shared_traces: Path) -> None:
    found = analysed([shared_traces / "nsys/host_bound_2gpu_h100.sqlite"])
    assert found.analyses.replay.state == "measured"
    assert found.analyses.replay.job is not None
    assert found.analyses.replay.job.state == "not_measured"
    assert found.analyses.replay.job.reason
    launches = prediction(found, "without_launches")
    assert (launches.scope, launches.ranks, launches.gain.method) == ("rank", 2, "replay")
    assert "each rank was replayed alone" in launches.gain.assumptions[-1]


def test_windows_that_are_too_large_are_not_taken_together(tmp_path: Path) -> None:
    """Each rank alone is replayed still; nothing travels but its result."""
    job = planted_job(KINDS["dp4"])
    views = [v for path in job.write(tmp_path, force=True) for v in views_of(read_trace(path), job.facts())]
    kept = [replay_and_keep(v, keep_tasks=10) for v in views]
    assert all(k.rebuilt is None and k.replay.state == "measured" for k in kept)
    found = _whole(kept, 10)
    tasks = sum(k.replay.tasks for k in kept)
    assert found.job is not None
    assert found.job.reason == (
        f"the windows hold {tasks:,} tasks on 4 ranks; a joint replay is limited to 10"
    )
    assert found.gains.analysis.state == "not_measured"
    assert "--window" in found.gains.analysis.remedy
    # Each is small enough, all together are not.
    kept = [replay_and_keep(v, keep_tasks=tasks) for v in views]
    assert all(k.rebuilt is not None for k in kept)
    assert _whole(kept, tasks - 1).gains.analysis.state == "not_measured"
    # Nothing is tried on a window that tells nothing of a step, whatever its size.
    once = no_gains("it is start-up", "Capture later steps.")
    assert _whole(kept[:1], tasks).gains.analysis.state == "measured"
    assert _whole(kept[:1], tasks, once).gains is once


def _whole(kept: Sequence[KeptRank], tasks_max: int, withheld: Gains | None = None) -> whole.WholeReplay:
    from perfdoc.analyzers.clocks.alignment import align_clocks
    from perfdoc.analyzers.communication.matches import no_matches

    nothing = no_matches("not looked at", "")
    clocks, ledgers = align_clocks(nothing, []), [ledger() for _ in kept]
    return whole.replay_whole(kept, [], nothing, clocks, ledgers, tasks_max=tasks_max, withheld=withheld)


def test_clocks_that_are_not_tied_closely_are_not_joined(tmp_path: Path) -> None:
    """Two clusters, placed to within 6 % of the window of one another: too far; to within 4 % is not."""
    from perfdoc.analyzers.clocks.alignment import align_clocks
    from perfdoc.analyzers.communication.calls import collective_calls
    from perfdoc.analyzers.matching.collectives import match_collectives
    from perfdoc.simulator.replay.rebuilt import rebuild_rank
    from perfdoc.simulator.replay.unedited import replay_job

    job = planted_job(KINDS["dp4"])
    views = [v for path in job.write(tmp_path, force=True) for v in views_of(read_trace(path), job.facts())]
    calls = [collective_calls(v) for v in views]
    matches = match_collectives(calls, job.facts())
    clocks = align_clocks(matches, calls)
    ranks = [rebuild_rank(v) for v in views]
    assert replay(ranks[0]).state == "measured"
    window_ns = min(v.window.duration_ns for v in views)
    for percent, reason in ((6, "clock error"), (4, "")):
        apart = replace(clocks.clocks[3], cluster=1, resolution_ns=window_ns * percent // 100)
        loose = replace(clocks, clocks=(*clocks.clocks[:3], apart))
        found, _ = replay_job(ranks, calls, matches, loose)
        assert reason in found.reason
        assert found.state == ("not_measured" if reason else "measured")


def test_collections_are_worth_what_they_take_without_the_profiler() -> None:
    """Steps 2 and 4 collect: 100 and 120 ms; step 5 is profiled and collects for 220: a half. The step after
    (6) does not count. Without collections a step takes 1 s, under the profiler 1.25: 80 %, which two steps
    would not be enough to tell."""
    garbage = np.array([0, 100, 0, 120, 220, 500]) * 1_000_000
    log = LoggedSteps(
        step=np.arange(1, 7),
        duration_ns=garbage + np.where(np.arange(1, 7) == 5, 1_250_000_000, 10**9),
        data_ns=garbage * 0,
        garbage_ns=garbage,
        profiled=np.arange(1, 7) == 5,
    )
    assert free_lengths({0: log}).gc_frac == pytest.approx(0.5)
    assert free_lengths({0: log.take(log.step < 5)}).gc_frac is None
    assert free_lengths({}).gc_frac is None
    assert free_lengths({0: log}).step_frac == pytest.approx(0.8)
    assert free_lengths({0: log.take(log.step > 2)}).step_frac is None


def test_gains_are_of_the_window_without_the_profiler(tmp_path: Path) -> None:
    """Of the step of test_replay_cpu, whose collection of 30 us is on the path: at a third of that length it
    is worth 10 us."""
    rebuilt = cpu_step(tmp_path)
    basis = whole.basis_of(rebuilt, replay(rebuilt), [], FreeLengths(gc_frac=1 / 3))
    assert basis.length_ns == 980_000
    (gc,) = [p for p in predict_all([basis]).predictions if p.key == "without_gc"]
    assert gc.mid_ns == 10_000
    assert "33 % of their time under the profiler" in gc.gain.assumptions[-1]
    assert as_unprofiled(rebuilt, FreeLengths()) == (rebuilt, [])
