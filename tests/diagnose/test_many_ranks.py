"""A job of 16 ranks from the generator of benchmarks/many_ranks.py, with one slow rank among them."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import in_rank_order
from perfdoc.results import to_json
from perfdoc.simulator.forward.layout import Layout
from perfdoc.simulator.forward.writing import write_job

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from many_ranks import CLOCK_ERROR_NS, many_ranks, straggler

LAYOUT = Layout(tp=4, pp=2, dp=2, seq=2048, micro_batches=2)
SLOW = 13
"""Second of four in its tensor group, replica 1 of 2, the last of two stages: 1 + 4 (1 + 2)."""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[CaptureMeasurement]:
    folder = tmp_path_factory.mktemp("many")
    job = many_ranks(LAYOUT)
    write_job(job, folder, ranks=range(LAYOUT.world_size), clock_error_ns=CLOCK_ERROR_NS)
    files = [folder / "traces" / f"rank{rank}.sqlite" for rank in range(LAYOUT.world_size)]
    return [measure_capture(file, WindowRequest()) for file in files]


@pytest.mark.slow
def test_the_planted_straggler_is_named_with_its_cause(captures: list[CaptureMeasurement]) -> None:
    assert straggler(LAYOUT) == SLOW
    found = diagnose(captures)
    worst = found.analyses.skew.stragglers[0]
    assert (worst.rank, worst.cause) == (SLOW, "compute")
    assert {s.rank for s in found.analyses.skew.stragglers if s.cause == "compute"} == {SLOW}
    (rule,) = [r for r in found.rules if r.code == "PD303"]
    assert rule.state == "fires"
    assert f"rank {SLOW}" in rule.reason.lower()


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_order_of_files(captures: list[CaptureMeasurement]) -> None:
    shuffled = random.Random(5).sample(captures, len(captures))
    assert [c.path for c in shuffled] != [c.path for c in captures]
    assert to_json(diagnose(in_rank_order(shuffled))) == to_json(diagnose(captures))


@pytest.mark.slow
def test_captures_that_do_not_say_their_rank_stay_in_the_given_order(
    captures: list[CaptureMeasurement],
) -> None:
    (rank,) = captures[3].ranks
    nameless = replace(captures[3], ranks=[replace(rank, device=replace(rank.device, rank=None))])
    given = [captures[2], nameless, captures[0]]
    assert in_rank_order(given) == given
