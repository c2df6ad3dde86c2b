"""PD301, PD303 and PD501: the pipeline, a late rank, memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.memory.memory_files import JobMemory, RankMemory
from perfdoc.rules.case import Case
from perfdoc.rules.knobs.configuration import Configuration
from perfdoc.rules.knobs.knob import Value
from perfdoc.simulator.nsys_sqlite import write_nsys_sqlite
from perfdoc.simulator.planted_job import planted_job
from perfdoc.simulator.planted_spec import JobSpec, Late
from tests.analyzers.memory_planted import MIB, a_step, one
from tests.rules.cases import case_of, predicting, result, settings_of, step_with_gap

PIPELINE: dict[str, Value] = {
    "num_layers": 8,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": None,
    "tensor_model_parallel_size": 1,
}


def planted(folder: Path, spec: JobSpec, settings: dict[str, Value] | None = None) -> Case:
    captures = [
        measure_capture(write_nsys_sqlite(t, folder / f"rank{i}.sqlite", force=True), WindowRequest())
        for i, t in enumerate(planted_job(spec).timelines)
    ]
    configuration = Configuration(values=settings or {}, dialect="perfdoc")
    return replace(Case.of(captures), configuration=configuration)


def test_pd301_bubble(tmp_path: Path) -> None:
    # Two stages, one micro-batch: each stage waits for the other for half of the work.
    fires = result("PD301", planted(tmp_path, JobSpec(pp=2, micro_batches=1)))
    assert fires.state == "fires", fires.reason
    assert fires.advice == []  # nobody predicted that more chunks gain
    # 64 micro-batches: 1/65 of the time.
    assert result("PD301", planted(tmp_path, JobSpec(pp=2, micro_batches=64, steps=2))).state == "passes"
    single = case_of(tmp_path, step_with_gap(1), settings={"pipeline_model_parallel_size": 1})
    assert result("PD301", single).state == "not_applicable"
    assert result("PD301", case_of(tmp_path, step_with_gap(1))).state == "skipped"


@pytest.mark.parametrize(("layers", "to"), [(8, 2), (6, None)])
def test_pd301_chunks_only_where_layers_divide(tmp_path: Path, layers: int, to: int | None) -> None:
    settings = {**PIPELINE, "num_layers": layers}
    case = planted(tmp_path, JobSpec(pp=2, micro_batches=2), settings)
    found = result("PD301", predicting(case, more_virtual_stages=(0.1, 0.2, 0.3)))
    advised = {} if to is None else {"virtual_pipeline_model_parallel_size": to}
    assert {a.knob: a.to for a in found.advice} == advised


def test_pd303_names_the_late_rank(tmp_path: Path) -> None:
    late = JobSpec(dp=4, micro_batches=2, late=Late(rank=2, extra_ns=1_000_000))
    found = result("PD303", predicting(planted(tmp_path, late), without_straggler_dp=(1.0, 2.0, 3.0)))
    assert (found.state, found.reason) == ("fires", "rank 2 comes last to DP collectives")
    assert found.gain is not None
    assert found.gain.mid_ms == 2.0
    even = result("PD303", planted(tmp_path, JobSpec(dp=4, micro_batches=2)))
    assert even.state in ("passes", "skipped")
    assert result("PD303", case_of(tmp_path, step_with_gap(1))).state == "not_applicable"


@pytest.mark.parametrize(("unused_mib", "state"), [(100, "fires"), (99, "passes")])
def test_pd501_threshold(tmp_path: Path, unused_mib: int, state: str) -> None:
    measured = one(a_step(), tmp_path, device_total_bytes=100 * MIB)
    assert measured.layout is not None
    layout = replace(measured.layout, reserved_bytes=1000 * MIB, inactive_split_bytes=unused_mib * MIB)
    memory = JobMemory(
        state="measured",
        reason="",
        remedy="",
        ranks=[RankMemory(rank=0, devices=[replace(measured, layout=layout)], process=None, sha256={})],
    )
    found = result("PD501", replace(case_of(tmp_path, step_with_gap(1)), memory=memory))
    assert found.state == state
    advised = {"pytorch_cuda_alloc_conf": "expandable_segments:True"} if state == "fires" else {}
    assert settings_of(found) == advised
    grows = replace(measured, layout=layout, expandable_segments=True)
    with_it = replace(memory, ranks=[RankMemory(rank=0, devices=[grows], process=None, sha256={})])
    assert result("PD501", replace(case_of(tmp_path, step_with_gap(1)), memory=with_it)).state == "passes"


def test_pd501_without_a_snapshot(tmp_path: Path) -> None:
    assert result("PD501", case_of(tmp_path, step_with_gap(1))).state == "skipped"
