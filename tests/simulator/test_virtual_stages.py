"""More chunks on a stage: only where layers divide; the ends of the model stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.simulator.forward.job import SimulatedJob
from perfdoc.simulator.replay.edits.layer_spread import balanced_layers, even_layers
from perfdoc.simulator.replay.edits.pipeline import virtual_stages
from tests.amount import some
from tests.simulator.rebuilt_of import length
from tests.simulator.simulated import replayed, simulated


@pytest.mark.parametrize(
    ("layout", "chunks", "said"),
    [
        ("pp=3", 2, "8 layers on 3 stages do not divide into 2 chunks on each"),
        ("pp=2,vpp=2", 8, "8 layers on 2 stages do not divide into 8 chunks on each"),
        ("pp=2,vpp=4", 3, "8 layers on 2 stages do not divide into 3 chunks on each"),
    ],
)
def test_layers_are_not_cut(layout: str, chunks: int, said: str, tmp_path: Path) -> None:
    _, rebuilt = replayed(simulated(layout), tmp_path)
    with pytest.raises(ValueError, match=said):
        virtual_stages(chunks).apply(rebuilt)


@pytest.mark.parametrize(
    ("world", "pp", "said"),
    [
        (0, 2, "stage of each rank"),
        (10**15, 10**15, "not every pipeline"),
        (1, 1, "one pipeline stage"),
    ],
)
def test_whatever_is_given_of_a_job_there_is_one_line(world: int, pp: int, said: str, tmp_path: Path) -> None:
    _, rebuilt = replayed(simulated("pp=2", steps=1), tmp_path)
    facts = replace(rebuilt.ranks[0].facts, world_size=world, pp=pp)
    given = replace(rebuilt, ranks=tuple(replace(r, facts=facts) for r in rebuilt.ranks))
    for edit in (virtual_stages(2), even_layers(), balanced_layers()):
        with pytest.raises(ValueError, match=said):
            edit.apply(given)


@pytest.mark.parametrize(
    ("layout", "fault"),
    some(
        [("tp=2,pp=2,dp=2", "late_rank=3:1.4"), ("pp=4,dp=2", "late_rank=2:1.5")],
        lambda case: "tp" in case[0],
    ),
)
def test_the_ends_of_the_model_stay_in_one_chunk(layout: str, fault: str, tmp_path: Path) -> None:
    """One of two replicas is slow, and the output takes as long as four layers, all in the last chunk: chunks
    of its stage that were alike would gain twice what the job with twice the chunks does, laid out apart."""

    def faulty(more: str) -> SimulatedJob:
        return simulated(layout + more, fault)

    now = faulty("")
    _, rebuilt = replayed(now, tmp_path)
    gained = now.simulation.makespan_ns - faulty(",vpp=2").simulation.makespan_ns
    saved = length(rebuilt) - length(virtual_stages(2).apply(rebuilt))
    assert gained > 10_000_000
    assert saved == pytest.approx(gained, rel=0.2)
