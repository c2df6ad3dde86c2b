"""What holds of every change that is tried, on jobs with faults: nothing runs before its cause or beside what
it follows, members of a collective go together, the capture is left as it was, and twice is once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import EdgeKind, TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.basis import Basis
from perfdoc.simulator.replay.edits.buckets import other_bytes
from perfdoc.simulator.replay.edits.edit import Proposal
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.gains import predict_all
from perfdoc.simulator.replay.predict import predict
from perfdoc.simulator.replay.proposals import proposals
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.simulator.rebuilt_of import job_of, length
from tests.simulator.scaled import scaled_communication, scaled_kernels
from tests.simulator.simulated import DENSE, MOE, facts_of, replayed, simulated, written

JOBS = {
    "stages": ("tp=2,pp=2,dp=2,seq=2048", ("no_overlap=dp", "gc=20", "late_rank=3:1.3")),
    "chunks": ("pp=2,vpp=2,dp=2,seq=2048", ("small_buckets=20", "slow_data=10")),
    "queues": ("tp=2,dp=2,seq=2048", ("max_connections", "norm_spin=4", "fp32_reduce")),
    "experts": ("dp=4,ep=2,seq=2048", ("exposed_ep",)),
    "parts": ("cp=2,tp=2,seq=2048", ("exposed_cp", "no_overlap=tp")),
    "uneven": ("pp=2,dp=2,seq=2048", ("uneven_stages=1", "launch_starved=500")),
}


@pytest.fixture(scope="module", params=some(JOBS, ["queues"]))
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Replay, Rebuilt]:
    layout, faults = JOBS[request.param]
    job = simulated(layout, *faults, shape=MOE if "ep=" in layout else DENSE)
    return replayed(job, tmp_path_factory.mktemp(request.param))


def applied(rebuilt: Rebuilt) -> list[tuple[Proposal, Rebuilt]]:
    """Every change that applies, and the step with it."""
    found = []
    for proposal in proposals(rebuilt):
        if proposal.edit is not None:
            try:
                found.append((proposal, proposal.edit.apply(rebuilt)))
            except ValueError:
                continue
    return found


def columns(rebuilt: Rebuilt) -> list[I64]:
    graph = rebuilt.graph
    own = (graph.duration_ns, graph.release_ns, graph.edges.source, graph.edges.lag_ns, rebuilt.bytes)
    return [c.copy() for c in (*own, rebuilt.start_ns, rebuilt.launch_ns)]


def test_nothing_runs_before_its_cause_or_beside_what_it_follows(job: tuple[Replay, Rebuilt]) -> None:
    _, rebuilt = job
    before = columns(rebuilt)
    changes = applied(rebuilt)
    assert len(changes) >= 3
    for proposal, edited in changes:
        key, graph, edges = proposal.key, edited.graph, edited.graph.edges
        times = schedule(graph)
        launches = edges.kind == EdgeKind.LAUNCH
        assert (times.start_ns[edges.target] >= times.start_ns[edges.source])[launches].all(), key
        _one_at_a_time(edited, times.start_ns, times.end_ns, key)
        together = (edges.kind == EdgeKind.COLLECTIVE) & (graph.kind[edges.target] == TaskKind.MEETING)
        assert (times.start_ns[edges.target] >= times.end_ns[edges.source])[together].all(), key
        gone = (edges.kind == EdgeKind.COLLECTIVE) & (graph.kind[edges.source] == TaskKind.MEETING)
        assert (times.start_ns[edges.target] >= times.end_ns[edges.source])[gone].all(), key
        assert all(np.array_equal(a, b) for a, b in zip(before, columns(rebuilt), strict=True)), key


def _one_at_a_time(edited: Rebuilt, start: I64, end: I64, key: str) -> None:
    """On every stream of a device."""
    graph = edited.graph
    device = np.isin(graph.kind, (TaskKind.COMPUTE, TaskKind.COMMUNICATION, TaskKind.COPY))
    rows = np.flatnonzero(device & (graph.duration_ns > 0))
    rows = rows[np.lexsort((start[rows], graph.resource[rows], graph.rank[rows]))]
    same = (graph.rank[rows[1:]] == graph.rank[rows[:-1]]) & (
        graph.resource[rows[1:]] == graph.resource[rows[:-1]]
    )
    assert (start[rows[1:]] >= end[rows[:-1]])[same].all(), key


def test_work_is_neither_lost_nor_doubled(job: tuple[Replay, Rebuilt]) -> None:
    """Changes that move, merge or cut communication leave all computation as long as it was."""
    _, rebuilt = job
    computes = rebuilt.graph.kind == TaskKind.COMPUTE
    total = int(rebuilt.graph.duration_ns[computes].sum())
    for proposal, edited in applied(rebuilt):
        if not proposal.key.startswith(("overlapped", "buckets", "dp_half", "without_g", "without_d")):
            continue
        if proposal.key == "overlapped_ep":
            continue  # half-size products may be slower
        now = edited.graph.duration_ns[edited.graph.kind == TaskKind.COMPUTE]
        assert int(now.sum()) == total, proposal.key


def test_the_same_change_twice_is_one(job: tuple[Replay, Rebuilt]) -> None:
    replay, rebuilt = job
    for proposal, _ in applied(rebuilt)[:4]:
        assert proposal.edit is not None
        once, twice = (predict(rebuilt, replay, [proposal.edit] * n) for n in (1, 2))
        assert once == twice, proposal.key


def test_changes_to_what_is_there_change_nothing(job: tuple[Replay, Rebuilt]) -> None:
    _, rebuilt = job
    end = length(rebuilt)
    edits = [scaled_kernels(None, 1), scaled_communication("dp", 1), other_bytes(1)]
    edits += [without_host_time("data", keep_frac=1)]
    for edit in edits:
        edited = edit.apply(rebuilt)
        assert length(edited) == pytest.approx(end, abs=2), edit.name


@pytest.mark.slow
def test_gains_do_not_hang_on_the_order_of_captures(tmp_path: Path) -> None:
    job = simulated("tp=2,pp=2,dp=2,seq=2048", "gc=20", "late_rank=3:1.3")
    facts = facts_of(job)
    views = [v for path in written(job, tmp_path) for v in views_of(read_trace(path), facts)]
    found = []
    for order in (views, views[::-1], [*views[3:], *views[:3]]):
        replay, rebuilt = job_of(order, facts)
        assert rebuilt is not None
        gains = predict_all([Basis(rebuilt=rebuilt, replay=replay, ledgers=[])])
        figures = {p.key: (p.low_ns, p.mid_ns, p.high_ns) for p in gains.predictions}
        found.append((figures, gains.combined.accepted, gains.combined.gain))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) >= 2
