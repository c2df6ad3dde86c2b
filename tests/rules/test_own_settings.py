"""Advice in jobs of torchtitan, DeepSpeed, Accelerate and verl's FSDP: their own settings, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.analyzers.job import measure_job
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS, Dialect, Value
from perfdoc.knobs.lint.text import lint
from perfdoc.reports.advice import change_title
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_settings import OF_ITS_SHARDING
from perfdoc.rules.engine.plain_pytorch import in_its_words
from perfdoc.simulator.replay.gains import no_gains

BUCKET = 40 << 20


def job(dialect: Dialect, **values: Value) -> Case:
    """A job of which nothing but its settings is known."""
    case = Case(captures=[], job=measure_job([]), gains=no_gains("", ""))
    return replace(case, configuration=Configuration(values=values, dialect=dialect))


def words(case: Case, knob: str, to: Value = True) -> list[Advice]:
    return in_its_words(case, [advise(knob=knob, to=to, why="x")])


@pytest.mark.parametrize(
    ("dialect", "values", "knob", "to", "written"),
    [
        # Both count elements: no factor.
        ("deepspeed", {}, "bucket_size", BUCKET, "zero_optimization.reduce_bucket_size=41943040"),
        ("deepspeed", {}, "overlap_grad_reduce", True, "zero_optimization.overlap_comm=true"),
        ("deepspeed", {"zero_stage": 3}, "overlap_param_gather", True, "zero_optimization.overlap_comm=true"),
        ("deepspeed", {}, "micro_batch_size", 4, "train_micro_batch_size_per_gpu=4"),
        ("deepspeed", {}, "grad_reduce_in_fp32", False, "communication_data_type=bf16"),
        ("deepspeed", {}, "use_distributed_optimizer", True, "zero_optimization.stage=1"),
        ("deepspeed", {"zero_stage": 2}, "use_torch_fsdp2", True, "zero_optimization.stage=3"),
        ("torchtitan", {}, "micro_batch_size", 4, "training.local_batch_size=4"),
        (
            "torchtitan",
            {"pipeline_model_parallel_size": 2, "local_batch_size": 8},
            "micro_batch_size",
            4,
            "parallelism.pipeline_parallel_microbatch_size=4",
        ),
        ("torchtitan", {}, "grad_reduce_in_fp32", True, "training.mixed_precision_reduce=float32"),
        ("torchtitan", {}, "recompute_granularity", "full", "activation_checkpoint.mode=full"),
        ("torchtitan", {}, "recompute_granularity", None, "activation_checkpoint.mode=none"),
        ("torchtitan", {}, "apply_rope_fusion", True, "compile.enable=true"),
        (
            "accelerate",
            {"accelerate_distributed_type": "FSDP"},
            "overlap_param_gather",
            True,
            "fsdp_config.fsdp_forward_prefetch=true",
        ),
        (
            "accelerate",
            {"accelerate_distributed_type": "DEEPSPEED"},
            "use_torch_fsdp2",
            True,
            "deepspeed_config.zero_stage=3",
        ),
        (
            "verl",
            {"verl_strategy": "fsdp"},
            "overlap_param_gather",
            True,
            "actor_rollout_ref.actor.fsdp_config.forward_prefetch=true",
        ),
        (
            "verl",
            {"verl_strategy": "fsdp"},
            "micro_batch_size",
            2,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        ),
    ],
)
def test_its_own_setting(
    dialect: Dialect, values: dict[str, Value], knob: str, to: Value, written: str
) -> None:
    (piece,) = words(job(dialect, **values), knob, to)
    assert (piece.dialects, piece.forbidden) == ({dialect: written}, "")
    # What is to be pasted stands in the text, and Megatron's name does not.
    assert written in change_title(piece)
    assert knob not in change_title(piece).removesuffix(written)
    # It is read back as a setting of this framework.
    assert not [f for f in lint(written + "\n", "x.args", dialect=dialect).findings if f.code == "PL101"]


def test_settings_of_deepspeed_stand_in_its_file_under_accelerate() -> None:
    case = job("accelerate", accelerate_distributed_type="DEEPSPEED", accelerate_deepspeed_file="ds.json")
    (bucket,), (stage,) = words(case, "bucket_size", BUCKET), words(case, "use_distributed_optimizer")
    assert bucket.dialects == {"deepspeed": "zero_optimization.reduce_bucket_size=41943040"}
    assert stage.dialects == {"deepspeed": "zero_optimization.stage=1"}


@pytest.mark.parametrize("dialect", [*PYTORCHS, "verl"])
def test_no_words_of_ddp_or_megatron(dialect: Dialect) -> None:
    """Every setting of data parallelism and of the mapping: the framework's own, or none."""
    case = job(dialect, verl_strategy="fsdp") if dialect == "verl" else job(dialect)
    for knob in sorted(OF_ITS_SHARDING | {"tensor_model_parallel_size", "overlap_p2p_comm"}):
        to: Value = {"bucket_size": BUCKET, "tensor_model_parallel_size": 2}.get(knob, True)
        to = "optim_grads" if knob == "data_parallel_sharding_strategy" else to
        for piece in words(case, knob, to):
            assert "pytorch" not in piece.dialects, knob
            assert not [t for t in piece.dialects.values() if "megatron" in t], knob
            assert piece.dialects or "has no such setting" in piece.forbidden, knob


@pytest.mark.parametrize(
    ("dialect", "values", "knob"),
    [
        ("deepspeed", {"zero_stage": 0}, "bucket_size"),  # read by ZeRO only
        ("deepspeed", {"zero_stage": 1}, "overlap_param_gather"),  # gathered once, behind the optimizer
        ("torchtitan", {}, "bucket_size"),
        ("torchtitan", {}, "overlap_grad_reduce"),
        ("accelerate", {"accelerate_distributed_type": "FSDP"}, "bucket_size"),
        ("verl", {"verl_strategy": "fsdp"}, "bucket_size"),
    ],
)
def test_none_of_the_kind(dialect: Dialect, values: dict[str, Value], knob: str) -> None:
    (piece,) = words(job(dialect, **values), knob, BUCKET if knob == "bucket_size" else True)
    assert piece.dialects == {}
    assert "has no such setting; in Megatron-LM: --" in piece.forbidden
    assert not piece.forbidden.startswith("PyTorch")


def test_what_is_so_already_is_left_out_and_what_is_excluded_is_refused() -> None:
    assert words(job("deepspeed", zero_overlap_comm=True), "overlap_grad_reduce") == []
    assert words(job("deepspeed", zero_stage=2), "use_distributed_optimizer") == []  # not down to 1
    (smaller,) = words(job("deepspeed", zero_reduce_bucket_size=5e8), "bucket_size", BUCKET)
    assert smaller.from_value == "500000000.0"
    (cut,) = words(job("torchtitan", torch_compile=False, tensor_model_parallel_size=2), "tp_comm_overlap")
    assert "compile.enable" in cut.forbidden
