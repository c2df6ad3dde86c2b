"""What the job's own settings say is known to the rules, which ask by Megatron's names."""

from dataclasses import replace

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_words import under_megatrons_names
from perfdoc.rules.engine.possible import why_not
from tests.rules.cases import predicting, result
from tests.rules.communicating import communicating

REDUCE, GATHER, SHARDED = "overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"
OVERLAP, BUCKET, TYPE = "zero_overlap_comm", "zero_reduce_bucket_size", "accelerate_distributed_type"
RECOMPUTE, PP = "recompute_granularity", "pipeline_model_parallel_size"


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """DP communication that is exposed for a tenth of each step of a job of PyTorch."""
    case = communicating(tmp_path_factory.mktemp("dp"), "dp", 100)
    return replace(case, captures=[replace(c, framework="pytorch") for c in case.captures])


@pytest.mark.parametrize(
    ("dialect", "values", "said"),
    [
        # No zero_optimization is stage 0: gradients are reduced behind the backward pass, nothing is sharded.
        ("deepspeed", {}, {REDUCE: False, SHARDED: False}),
        ("deepspeed", {"zero_stage": 2}, {REDUCE: False}),
        (
            "deepspeed",
            {"zero_stage": 2, OVERLAP: True, BUCKET: 5e8},
            {REDUCE: True, "bucket_size": 500_000_000},
        ),
        ("deepspeed", {"zero_stage": 3}, {REDUCE: True, GATHER: True, SHARDED: True}),
        ("deepspeed", {"zero_stage": 3, OVERLAP: False}, {REDUCE: False, GATHER: False, SHARDED: True}),
        (
            "deepspeed",
            {"zero_stage": 1, "deepspeed_communication_dtype": "fp32"},
            {REDUCE: False, "grad_reduce_in_fp32": True},
        ),
        ("accelerate", {TYPE: "DEEPSPEED"}, {REDUCE: False}),  # stage 2
        ("accelerate", {TYPE: "DEEPSPEED", "accelerate_deepspeed_file": "a.json"}, {}),
        ("accelerate", {TYPE: "MULTI_GPU"}, {REDUCE: True}),
        (
            "accelerate",
            {TYPE: "FSDP", "fsdp_forward_prefetch": False, "fsdp_activation_checkpointing": True},
            {GATHER: False, RECOMPUTE: "full"},
        ),
        ("accelerate", {"fsdp_forward_prefetch": False}, {}),
        ("torchtitan", {"checkpoint_mode": "none"}, {RECOMPUTE: None}),
        ("torchtitan", {"checkpoint_mode": "memory_budget"}, {}),
        (
            "torchtitan",
            {"checkpoint_mode": "full", "local_batch_size": 8, "fsdp_reduce_dtype": "bf16"},
            {RECOMPUTE: "full", "micro_batch_size": 8, "grad_reduce_in_fp32": False},
        ),
        (
            "torchtitan",
            {PP: 2, "local_batch_size": 8, "pipeline_microbatch_size": 2},
            {"micro_batch_size": 2},
        ),
        ("torchtitan", {PP: 2, "local_batch_size": 8}, {}),
        ("verl", {"verl_strategy": "fsdp", "verl_gradient_checkpointing": False}, {RECOMPUTE: None}),
        ("verl", {"verl_strategy": "veomni", "verl_gradient_checkpointing": False}, {}),
    ],
)
def test_what_follows_from_its_settings(
    dialect: Dialect, values: dict[str, Value], said: dict[str, Value]
) -> None:
    given = Configuration(values=values, dialect=dialect)
    found = under_megatrons_names("pytorch", given)
    always: dict[str, Value] = {"manual_gc": True} if dialect == "torchtitan" else {}
    assert dict(found.values) == values | always | said
    assert found.written == given.written
    assert under_megatrons_names("megatron", given) is given


def test_what_is_said_under_megatrons_name_or_cannot_be_told_stays() -> None:
    given = Configuration(
        values={RECOMPUTE: None, "zero_stage": 1}, dialect="deepspeed", unknown=frozenset({OVERLAP, REDUCE})
    )
    assert under_megatrons_names("pytorch", given) is given
    titan = Configuration(values={RECOMPUTE: "full", "checkpoint_mode": "none"}, dialect="torchtitan")
    assert under_megatrons_names("pytorch", titan).values[RECOMPUTE] == "full"


def judged(case: Case, **values: Value) -> RuleResult:
    given = Configuration(values=values, dialect="deepspeed")
    return result("PD101", replace(case, configuration=under_megatrons_names("pytorch", given)))


def test_pd101_knows_what_deepspeed_overlaps_and_its_buckets(exposed: Case) -> None:
    case = predicting(exposed, buckets_x4=(0.01, 0.02, 0.03), overlapped_dp=(0.01, 0.015, 0.02))
    off = judged(case, zero_stage=2, **{OVERLAP: False})
    (piece,) = off.advice
    assert [*piece.dialects.values()] == ["zero_optimization.overlap_comm=true"]
    assert (piece.if_unset, piece.gain and piece.gain.mid_ms) == ([], 0.015)
    on = judged(case, zero_stage=2, **{OVERLAP: True, BUCKET: 1000})
    (piece,) = on.advice
    assert [*piece.dialects.values()] == ["zero_optimization.reduce_bucket_size=4000"]
    assert "gradients during the backward pass" not in on.remedy
    # Megatron-core's default size is no advice to DeepSpeed.
    unsure = predicting(exposed, buckets_x4=(0.0, 0.02, 0.03))
    assert judged(unsure, zero_stage=2, **{OVERLAP: True, BUCKET: 1000}).advice == []


def test_buckets_of_deepspeed_need_no_overlap(exposed: Case) -> None:
    values: dict[str, Value] = {"zero_stage": 2, OVERLAP: False}
    given = under_megatrons_names("pytorch", Configuration(values=values, dialect="deepspeed"))
    assert why_not(replace(exposed, configuration=given), "buckets_x4", []) == ""
    megatrons = Configuration(values={REDUCE: False}, dialect="megatron_lm")
    assert why_not(replace(exposed, configuration=megatrons), "buckets_x4", [])
