"""A job's settings, from a file, a run directory and facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.diagnose.job import job_configuration
from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.settings import read_configuration
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.rules.engine.case import Case
from perfdoc.simulator.replay.gains import no_gains
from perfdoc.traces.job_facts import JobFacts
from tests.gate.manifests import tiny_manifest


def test_a_run_directory_is_complete(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_manifest(tiny_manifest(bucket_size=1000, created_utc="2026-11-21T00:00:00Z"))
    found = read_configuration(run.path)
    assert (found.dialect, found.complete, found.values["bucket_size"]) == ("perfdoc", True, 1000)
    assert job_configuration(JobFacts(run_directory=run.path), None).values == found.values


def test_roles_that_disagree_leave_a_setting_unknown(tmp_path: Path) -> None:
    (file := tmp_path / "verl.yaml").write_text(
        "actor_rollout_ref:\n"
        "  actor:\n    megatron:\n      tensor_model_parallel_size: 4\n      "
        "pipeline_model_parallel_size: 2\n"
        "  ref:\n    megatron:\n      tensor_model_parallel_size: 2\n      pipeline_model_parallel_size: 2\n"
    )
    found = read_configuration(file)
    assert found.dialect == "verl"
    assert "tensor_model_parallel_size" in found.unknown
    assert found.values["pipeline_model_parallel_size"] == 2


def test_none_is_a_choice_where_it_is_one(tmp_path: Path) -> None:
    (file := tmp_path / "bridge.yaml").write_text(
        "model:\n  cuda_graph_impl: none\n  recompute_granularity: none\n  tensor_model_parallel_size: 2\n"
    )
    found = read_configuration(file, "megatron_bridge")
    assert (found.values["cuda_graph_impl"], found.values["recompute_granularity"]) == ("none", None)
    file.write_text("model:\n  cuda_graph_impl: null\n  tensor_model_parallel_size: None\n")
    assert "cuda_graph_impl" in read_configuration(file, "megatron_bridge").unknown


def test_recomputation_is_known_from_facts() -> None:
    assert job_configuration(JobFacts(recompute="none"), None).values["recompute_granularity"] is None
    assert job_configuration(JobFacts(recompute="full"), None).values["recompute_granularity"] == "full"
    assert "recompute_granularity" not in job_configuration(JobFacts(tp=2), None).values


def test_a_file_goes_before_facts_and_facts_fill_in(tmp_path: Path) -> None:
    (file := tmp_path / "flags.sh").write_text(
        "torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --bf16\n"
    )
    found = job_configuration(JobFacts(tp=2, pp=8), file)
    assert found.values["tensor_model_parallel_size"] == 4
    assert found.values["pipeline_model_parallel_size"] == 8


SCRIPT = """#!/bin/bash
GPUS=8
MODEL_ARGS=(--num-layers 32 --bf16)
PARALLEL="--tensor-model-parallel-size $TP --use-distributed-optimizer"
torchrun --nproc-per-node $GPUS pretrain_gpt.py ${MODEL_ARGS[@]} $PARALLEL %s
"""


@pytest.mark.parametrize(
    ("end", "complete"),
    [
        ("", True),
        ("--seq-length $SEQ", True),  # a value from elsewhere is no flag from elsewhere
        ('"$@"', False),
        ("$EXTRA_ARGS", False),
        ("${EXTRA_ARGS:-}", False),
        ("--bf16 ${MORE[@]}", False),
    ],
)
def test_a_script_has_megatrons_defaults_unless_flags_come_from_elsewhere(
    tmp_path: Path, end: str, complete: bool
) -> None:
    (file := tmp_path / "train.sh").write_text(SCRIPT % end)
    found = read_configuration(file)
    assert (found.dialect, found.complete) == ("megatron_lm", complete)
    case = Case(captures=(), job=None, gains=no_gains("", ""), configuration=found)  # type: ignore[arg-type]
    assert case.setting("overlap_grad_reduce") == ((True, False) if complete else (False, None))
    assert case.setting("use_distributed_optimizer") == (True, True)
    assert not case.setting("tensor_model_parallel_size")[0]


def test_a_variable_that_is_set_from_outside_is_not_the_scripts_own(tmp_path: Path) -> None:
    (file := tmp_path / "train.sh").write_text("MORE=${MORE:-}\npython pretrain_gpt.py --bf16 $MORE\n")
    assert not read_configuration(file).complete


def test_a_job_without_ranks_has_no_replicas() -> None:
    # 0 ranks / (tp 2) would be 0 replicas, and a division by that was a rule's end.
    none = View(Configuration(values={"nnodes": 2, "nproc_per_node": 0, "tensor_model_parallel_size": 2}))
    with pytest.raises(Undecided):
        _ = none.dp
