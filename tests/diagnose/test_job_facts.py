"""What is known of the job, and tokens per second and GPU, in the diagnosis."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.quality import quality_of
from perfdoc.knobs.configuration import Configuration
from perfdoc.reports.outlook import next_capture
from perfdoc.results import Diagnosis, Job, from_json, to_json
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import find_captures
from tests.planted.capture import write_capture
from tests.rules.communicating import communicating


def _diagnosis(folder: Path, *words: str, request: WindowRequest | None = None) -> tuple[Diagnosis, Job]:
    trace = write_capture(folder / "demo")
    asked = AnalysisRequest(
        captures=find_captures([str(trace)]),
        window=request or WindowRequest(),
        given=given_facts(words),
        replay=False,
    )
    settings = Configuration(dialect="megatron_lm")
    found = from_json(to_json(diagnose(measure_all(asked).captures, configuration=settings)))
    assert found.job is not None
    return found, found.job


def test_tokens_per_second_are_the_batch_by_step_time_and_gpus(tmp_path: Path) -> None:
    found, job = _diagnosis(tmp_path, "gbs=128", "seq=8192", "world_size=2", "tp=1")
    assert (job.global_batch_sequences, job.sequence_length, job.tp, job.pp) == (128, 8192, 1, 1)
    assert (job.sources["tp"], job.dialect) == ("--set", "megatron_lm")
    assert job.tokens_per_step == 1_048_576
    step_ns = found.mfu.step_time_ns
    assert step_ns is not None
    # 1,048,576 tokens by 2 GPUs are 524,288 of a GPU in a step.
    assert job.tokens_per_s_per_gpu == pytest.approx(524_288e9 / step_ns)
    assert job.tokens_reason == job.tokens_remedy == ""


def test_what_is_missing_is_said_and_no_figure_is_made_up(tmp_path: Path) -> None:
    _, job = _diagnosis(tmp_path / "a", "gbs=128", "world_size=64")
    assert (job.tokens_per_step, job.tokens_per_s_per_gpu) == (None, None)
    assert job.tokens_reason == "batch unknown: seq not given"
    _, job = _diagnosis(
        tmp_path / "b", "gbs=4", "seq=8", "world_size=64", request=WindowRequest(whole_capture=True)
    )
    assert (job.tokens_per_step, job.tokens_per_s_per_gpu) == (32, None)
    assert job.tokens_reason == "the windows are not made of whole steps"


def test_a_gpu_that_the_capture_does_not_name_may_be_named(tmp_path: Path) -> None:
    """2 x 1024^3 operations in 10 us are 214.7 TFLOP/s, 16.4 % of an MI300X's 1,307; the file, as tools that
    keep the events alone write it, names no device."""
    at = {"ph": "X", "pid": 470, "tid": 711}
    inputs = {"Input Dims": [[1024, 1024]] * 2, "Input type": ["BFloat16"] * 2, "External id": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "Cijk_Ailk_Bljk_BBS", "pid": 0, "tid": 7, "ts": 50.0}
    linked = {"device": 0, "stream": 7, "External id": 1}
    events = [
        {**at, "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 40.0, "args": inputs},
        {
            **at,
            "cat": "cuda_runtime",
            "name": "hipLaunchKernel",
            "ts": 9.0,
            "dur": 5.0,
            "args": {"External id": 1},
        },
        {**kernel, "dur": 10.0, "args": linked},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))

    def of(*words: str) -> Diagnosis:
        asked = AnalysisRequest(captures=(path,), given=given_facts(words), replay=False)
        return diagnose(measure_all(asked).captures)

    unnamed, named = of(), of("gpu_name=MI300X")
    (operator,) = unnamed.analyses.kernel_efficiency.operators
    assert (operator.achieved_tflops, operator.roofline_frac) == (pytest.approx(214.748, rel=1e-5), None)
    assert "--set gpu_name=" in next_capture(unnamed)
    (operator,) = named.analyses.kernel_efficiency.operators
    assert operator.roofline_frac == pytest.approx(214.748 / 1307, rel=1e-4)
    assert named.ranks[0].gpu.name == "Instinct MI300X"
    assert "gpu_name" not in next_capture(named)


@pytest.mark.parametrize(
    ("cores", "on_host", "told"), [(2, True, True), (8, True, False), (None, True, False), (2, False, False)]
)
def test_ranks_that_share_cores_are_told(
    tmp_path: Path, cores: int | None, on_host: bool, told: bool
) -> None:
    """Eight ranks on two cores take turns, so that most of their communication is waiting for one."""
    case = communicating(tmp_path, "dp", 100)
    captures = [replace(c, ranks=[replace(r, on_host=on_host) for r in c.ranks]) for c in case.captures]
    job = replace(case.job, facts=JobFacts(world_size=8, cores=cores))
    notes = {note.code: note.message for note in quality_of(captures, [], [], job)}
    assert ("8 ranks share 2 cores" in notes.get("ranks-share-cores", "")) == told
    assert ("ranks-share-cores" in notes) == told
