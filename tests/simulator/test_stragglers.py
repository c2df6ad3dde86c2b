"""Who is the late rank, and what its lateness costs; others are victims, or as quick as their peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.activity import DIMENSIONS, UNKNOWN_DIMENSION
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.basis import Basis
from perfdoc.simulator.replay.edits.even_ranks import last_to_arrive, straggler_of, without_straggler
from perfdoc.simulator.replay.gains import predict_all
from perfdoc.simulator.replay.proposals import proposals
from tests.simulator.rebuilt_of import length
from tests.simulator.simulated import replayed, simulated


def test_a_victim_is_not_taken_for_the_culprit(tmp_path: Path) -> None:
    """Rank 2, the second stage of the first of two pipelines, is slow. Rank 0, the stage before it, comes
    last to more collectives over replicas than it does, because it waits for it."""
    job = simulated("pp=4,dp=2", "late_rank=2:1.5")
    _, rebuilt = replayed(job, tmp_path)
    assert last_to_arrive(rebuilt, "dp") == 0
    assert straggler_of(rebuilt, "dp") == 2
    saved = length(rebuilt) - length(without_straggler(2, "dp").apply(rebuilt))
    assert saved == pytest.approx(job.costs[0].cost_ns, rel=0.01)
    for other in (0, 1, 3, 4):
        with pytest.raises(ValueError, match="computes no longer than its dp peers"):
            without_straggler(other, "dp").apply(rebuilt)


def test_a_late_rank_is_called_by_its_name(tmp_path: Path) -> None:
    """Not by its place among the captures that are here."""
    _, rebuilt = replayed(simulated("dp=4", "late_rank=3:1.3", steps=1), tmp_path)
    swapped = replace(rebuilt, ranks=tuple(replace(r, name=f"node{r.rank}") for r in rebuilt.ranks))
    (late,) = (p for p in proposals(swapped) if p.key == "without_straggler_dp")
    assert late.edit is not None
    assert late.edit.name == "node3 as fast as its dp peers"
    nameless = np.where(rebuilt.dimension == DIMENSIONS.index("dp"), UNKNOWN_DIMENSION, rebuilt.dimension)
    (late,) = (p for p in proposals(replace(swapped, dimension=nameless)) if p.key.startswith("without_stra"))
    assert late.edit is not None
    assert late.edit.name == "node3 as fast as its peers"


def test_who_has_more_kernels_is_compared_as_a_whole(tmp_path: Path) -> None:
    """One kernel of a peer counts for nothing any more: the others' sum decides, and what a fault cost is
    found within some per cent."""
    job = simulated("dp=2", "late_rank=1:1.5")
    _, rebuilt = replayed(job, tmp_path)
    kind = rebuilt.graph.kind.copy()
    kind[np.flatnonzero((kind == TaskKind.COMPUTE) & (rebuilt.graph.rank == 0))[7]] = TaskKind.COPY
    fewer = replace(rebuilt, graph=replace(rebuilt.graph, kind=kind))
    saved = length(fewer) - length(without_straggler(1, "dp").apply(fewer))
    assert saved == pytest.approx(job.costs[0].cost_ns, rel=0.03)


def test_chance_is_no_straggler(tmp_path: Path) -> None:
    """Two ranks whose kernels vary by chance by 20 % alike wait for each other in turn. All kernels of the
    slower one shorter alike, so that both compute as long, saves no more than that, and the band reaches down
    to it."""
    _, rebuilt = replayed(simulated("dp=2", steps=1), tmp_path)
    rows = [
        np.flatnonzero((rebuilt.graph.kind == TaskKind.COMPUTE) & (rebuilt.graph.rank == rank))
        for rank in (0, 1)
    ]
    chance = np.random.default_rng(7)
    for _ in range(6):
        duration = rebuilt.graph.duration_ns.copy()
        for mine in rows:
            duration[mine] = (duration[mine] * chance.uniform(0.8, 1.2, len(mine))).astype(np.int64)
        varied = replace(rebuilt, graph=replace(rebuilt.graph, duration_ns=duration))
        late = straggler_of(varied, "dp")
        assert late is not None
        longer = abs(int(duration[rows[0]].sum()) - int(duration[rows[1]].sum()))
        (alike,) = without_straggler(late, "dp").variants
        assert 0 < length(varied) - length(alike(varied)) <= 1.01 * longer


def test_lateness_by_chance_is_in_no_set(tmp_path: Path) -> None:
    """The same late rank, whether the arrivals of the run name it, or another one, or nobody."""
    found, rebuilt = replayed(simulated("dp=4", "late_rank=3:1.3"), tmp_path)
    basis = Basis(rebuilt=rebuilt, replay=found, ledgers=[])
    name = rebuilt.ranks[3].name
    for named, counted in (((name, "dp"), True), ((name, "tp"), False), (("rank 0", "dp"), False)):
        gains = predict_all([basis], [named])
        (late,) = (p for p in gains.predictions if p.key == "without_straggler_dp")
        assert (late.low_ns or 0) > 0
        assert (late.key in gains.combined.accepted) == counted
        assert any(late.key in s.keys for s in gains.combined.sets) == counted
        assert ("within noise" in late.gain.assumptions[-1]) != counted
    assert "without_straggler_dp" not in predict_all([basis]).combined.accepted
