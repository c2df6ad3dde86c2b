"""Collectives cut into parts: what they take, what waits for them, and that all members are cut alike."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.rewiring import in_parts, is_transfer
from perfdoc.simulator.replay.rebuilt import Rebuilt
from tests.simulator.simulated import replayed, simulated

LATENCY_NS = 9_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """Two ranks that reduce all gradients at the end of the step."""
    whole = "dp=2,distributed_optimizer=off,overlap_grad_reduce=off,bucket=400000000,micro_batches=1"
    return replayed(simulated(whole, steps=1), tmp_path_factory.mktemp("pair"))[1]


def span(rebuilt: Rebuilt) -> int:
    return rebuilt.span(schedule(rebuilt.graph).end_ns)


def test_parts_pay_the_latency_each_and_nothing_else(pair: Rebuilt) -> None:
    """Every reduction follows the one before: in three parts two latencies more for each, 18,000 ns."""
    ours = is_transfer(pair, "dp")
    count = int(ours.sum()) // 2
    cut = in_parts(pair, np.where(ours, 3, 1), LATENCY_NS)
    assert int(is_transfer(cut, "dp").sum()) == 3 * int(ours.sum())
    assert span(cut) - span(pair) == pytest.approx(count * 2 * LATENCY_NS, abs=3 * count)
    assert cut.bytes[is_transfer(cut, "dp")].sum() == pytest.approx(pair.bytes[ours].sum(), abs=6 * count)


def test_all_members_are_cut_into_what_any_is(pair: Rebuilt) -> None:
    """One rank asks for four parts, the other for none: both have four, and four meetings."""
    ours = np.flatnonzero(is_transfer(pair, "dp"))
    first = [ours[pair.graph.rank[ours] == rank][0] for rank in (0, 1)]
    parts = np.ones(len(pair.start_ns), np.int64)
    parts[first[0]] = 4
    cut = in_parts(pair, parts, LATENCY_NS)
    more = {
        kind: int((cut.graph.kind == kind).sum() - (pair.graph.kind == kind).sum())
        for kind in (TaskKind.COMMUNICATION, TaskKind.ARRIVAL, TaskKind.MEETING)
    }
    assert more == {TaskKind.COMMUNICATION: 6, TaskKind.ARRIVAL: 6, TaskKind.MEETING: 3}
    assert in_parts(pair, np.ones(len(parts), np.int64), LATENCY_NS) is pair


def test_the_capture_is_left_as_it_was(pair: Rebuilt) -> None:
    before = pair.graph.duration_ns.copy(), pair.bytes.copy()
    in_parts(pair, np.where(is_transfer(pair, "dp"), 5, 1), LATENCY_NS)
    assert (pair.graph.duration_ns == before[0]).all()
    assert (pair.bytes == before[1]).all()
