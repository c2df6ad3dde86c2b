"""Planted faults of simulated jobs: the rule on each fires, and its gain is what the fault costs."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import measure_all
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results import RuleResult
from perfdoc.simulator.forward.job import SimulatedJob
from tests.amount import some
from tests.rules.cases import gain_of
from tests.simulator.simulated import DENSE, MOE, facts_of, simulated, written

EVEN = msgspec.structs.replace(DENSE, vocabulary=1024)
"""Its output layer and embedding take next to nothing: stages of as many layers are even."""
SPLIT: Mapping[str, Value] = {
    "num_layers": 8,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}
OURS = [f"PD3{n:02}" for n in range(1, 80) if n != 3]


def rules_of(job: SimulatedJob, folder: Path, settings: Mapping[str, Value]) -> dict[str, RuleResult]:
    """Every rule's row, by code."""
    request = AnalysisRequest(captures=written(job, folder), given=facts_of(job))
    configuration = Configuration(values=settings, dialect="megatron_core")
    found = diagnose(measure_all(request).captures, configuration=configuration)
    return {rule.code: rule for rule in found.rules}


def test_uneven_stages(tmp_path: Path) -> None:
    """Three layers and five: the split is given so, and four of each is advised."""
    job = simulated("pp=2,micro_batches=8", "uneven_stages=1", shape=EVEN, steps=2)
    known = {**SPLIT, "num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 5}
    found = rules_of(job, tmp_path, known)["PD305"]
    assert (found.state, found.level, found.reason) == (
        "fires",
        "problem",
        "the last stage, which holds the output layer and the loss, takes longer than the others",
    )
    assert [(a.knob, a.to_value) for a in found.advice] == [
        ("num_layers_in_first_pipeline_stage", "4"),
        ("num_layers_in_last_pipeline_stage", "4"),
    ]
    assert gain_of(found).mid_ms == pytest.approx(job.costs[0].cost_ns / job.steps / 1e6, rel=0.05)


def test_too_few_virtual_stages(tmp_path: Path) -> None:
    job = simulated("pp=2,vpp=2,micro_batches=4", "virtual_stages=1", shape=EVEN, steps=2)
    found = rules_of(job, tmp_path, {**SPLIT, "overlap_p2p_comm": True})["PD301"]
    assert (found.state, found.level) == ("fires", "problem")
    assert [(a.knob, a.to_value) for a in found.advice] == [
        ("virtual_pipeline_model_parallel_size", "4"),
        ("batch_p2p_comm", "false"),  # refused beside overlapped messages
    ]
    best = simulated("pp=2,vpp=4,micro_batches=4", shape=EVEN, steps=2).simulation.makespan_ns
    saved_ms = (job.simulation.makespan_ns - best) / job.steps / 1e6
    assert gain_of(found).mid_ms == pytest.approx(saved_ms, rel=0.05)


@pytest.mark.parametrize(
    ("layout", "shape"),
    some(  # test_sound_jobs.py asks every rule of such jobs
        [("pp=2,micro_batches=16", EVEN), ("dp=2", EVEN), ("dp=4,ep=4", MOE), ("tp=2,dp=2", EVEN)],
        lambda case: case[0].startswith("pp"),
    ),
)
def test_without_a_fault_there_is_no_problem(layout: str, shape: ModelShape, tmp_path: Path) -> None:
    rules = rules_of(simulated(layout, shape=shape, steps=1), tmp_path, {})
    found = [rules[code] for code in OURS if code in rules]
    assert len(found) > 20
    assert [(r.code, r.reason) for r in found if r.state == "fires" and r.level == "problem"] == []


def test_the_first_stage_is_no_straggler(tmp_path: Path) -> None:
    """It ends last in each of six steps, so that it joins the embedding's group last."""
    found = rules_of(simulated("pp=4,micro_batches=4", shape=DENSE, steps=6), tmp_path, {})["PD303"]
    assert (found.state, "by the schedule these end" in found.reason) == ("passes", True), found.evidence
