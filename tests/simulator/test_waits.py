"""Captures of some ranks only: what they waited for the others is no transfer that a change shortens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.results.replay import Gain
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.forward.faults import parse_faults, planted_in
from perfdoc.simulator.forward.job import simulate_job
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.replay.edits.edit import Change, Edit, Proposal
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.overlap import overlapped, without_queueing
from perfdoc.simulator.replay.edits.rewiring import arrivals
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay
from perfdoc.simulator.replay.whole import ASSUMED, basis_of, without_waits
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.simulator.rebuilt_of import job_of
from tests.simulator.simulated import DENSE, facts_of, replayed, simulated, written


def of_rank_0(folder: Path, layout: str, *faults: str) -> Rebuilt:
    job = simulated(layout, *faults)
    (view,) = views_of(read_trace(written(job, folder)[0]), facts_of(job))
    return rebuild_rank(view)


IT = Change(key="it", title="it", rule="", make=lambda _: None)


def gain_of(rebuilt: Rebuilt, edit: Edit) -> Gain:
    basis = basis_of(rebuilt, replay(rebuilt), [])
    return basis.of([Proposal(of=IT, edit=edit)])


def cost_ms(layout: str, fault: str, others: Sequence[str]) -> float:
    """Per step, of one fault beside others, by jobs laid out apart."""
    lay = parse_layout(f"seq=4096,{layout}")
    with_it, without = (
        simulate_job(DENSE, planted_in(lay, parse_faults(f)), simulated("dp=2").gpu, 2).makespan_ns
        for f in ([fault, *others], others)
    )
    return (with_it - without) / 2e6


@pytest.mark.parametrize(
    ("layout", "fault", "edit"),
    some(
        [
            ("dp=4", "no_overlap=dp", overlapped("dp")),
            ("tp=2,dp=2", "max_connections", without_queueing()),
            ("dp=4", "small_buckets=10", rebucketed(20_000_000)),
        ],
        lambda case: case[1] == "max_connections",
    ),
)
def test_a_late_rank_that_is_not_here_is_not_gained(
    layout: str, fault: str, edit: Edit, tmp_path: Path
) -> None:
    """Rank 0 of a job whose rank 2 or 3 is slow: every bucket waits for it, 40 ms at the end of each step."""
    late = f"late_rank={3 if 'tp' in layout else 2}:1.3"
    rebuilt = of_rank_0(tmp_path, layout, fault, late)
    found = gain_of(rebuilt, edit)
    cost = cost_ms(layout, fault, [late])
    assert found.mid_ms is not None
    assert found.low_ms is not None
    assert found.high_ms is not None
    assert cost > 1
    assert found.low_ms <= cost <= found.high_ms
    assert found.mid_ms == pytest.approx(cost, rel=0.25)
    assert ASSUMED in found.assumptions


def test_where_nobody_is_late_nothing_changes(tmp_path: Path) -> None:
    rebuilt = of_rank_0(tmp_path, "dp=4", "no_overlap=dp")
    found = without_waits(rebuilt)
    waits = 0 if found is None else int((rebuilt.graph.duration_ns - found.graph.duration_ns).sum())
    assert waits < 1e-4 * rebuilt.span(rebuilt.end_ns)
    assert np.all(rebuilt.graph.duration_ns >= 0)


def test_matched_collectives_are_left(tmp_path: Path) -> None:
    """All ranks are here: who waited for whom is known."""
    _, rebuilt = replayed(simulated("dp=2", "late_rank=1:1.5", steps=1), tmp_path)
    assert without_waits(rebuilt) is None


def test_one_that_the_window_cuts_is_measured_by_those_that_were_matched(tmp_path: Path) -> None:
    """A single reduction without its peers, twice as long as all others of its size: the half is waiting."""
    _, rebuilt = replayed(simulated("dp=2,overlap_grad_reduce=off", steps=1), tmp_path)
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    after = edges.target[graph.kind[edges.source] == TaskKind.MEETING]
    (cut,) = after[(graph.rank[after] == 0) & (rebuilt.reduces[after] == 1)][4:5]
    kind = graph.kind.copy()
    kind[edges.source[(edges.target == cut) & (edges.kind == EdgeKind.COLLECTIVE)]] = TaskKind.HOST
    duration = graph.duration_ns.copy()
    usual = int(duration[cut])
    duration[cut] *= 2
    found = without_waits(replace(rebuilt, graph=replace(graph, kind=kind, duration_ns=duration)))
    assert found is not None
    changed = np.flatnonzero(found.graph.duration_ns != duration)
    assert changed.tolist() == [cut]
    assert found.graph.duration_ns[cut] == pytest.approx(usual, abs=2)


def test_who_left_before_the_others_came_waited_for_nobody(tmp_path: Path) -> None:
    """As a sender may: its transfer follows its own arrival, and is as long as it is, with all ranks here."""
    _, rebuilt = replayed(simulated("dp=2,overlap_grad_reduce=off", steps=1), tmp_path)
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    after = edges.target[graph.kind[edges.source] == TaskKind.MEETING]
    (sent,) = after[(graph.rank[after] == 0) & (rebuilt.reduces[after] == 1)][4:5]
    source = edges.source.copy()
    source[(edges.target == sent) & (edges.kind == EdgeKind.COLLECTIVE)] = arrivals(rebuilt)[sent]
    duration = graph.duration_ns.copy()
    duration[sent] *= 2
    left = replace(graph, edges=replace(edges, source=source), duration_ns=duration)
    assert without_waits(replace(rebuilt, graph=left)) is None


def test_members_that_are_here_may_all_have_waited(tmp_path: Path) -> None:
    """Of four replicas the captures of two, which are matched; a third collects garbage for 60 ms."""
    job = simulated("dp=4", "gc=60", "late_rank=2:1.01")
    facts, paths = facts_of(job), written(job, tmp_path)
    views = [v for i in (2, 3) for v in views_of(read_trace(paths[i]), facts)]
    found, joined = job_of(views, facts)
    assert joined is not None
    basis = basis_of(joined, found, [])
    gain = basis.of([Proposal(of=IT, edit=rebucketed(80_000_000))])
    assert gain.mid_ms is not None
    assert 0 < gain.mid_ms < 10
