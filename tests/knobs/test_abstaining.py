"""Files that are right, or that tell too little: nothing is said of them."""

from __future__ import annotations

import pytest

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.lint.text import lint


def codes(text: str, name: str, dialect: Dialect | None = None) -> list[str]:
    return [f"{f.code} {f.severity} {f.knob}" for f in lint(text, name, dialect=dialect).findings]


def test_nemo_1_has_names_of_its_own() -> None:
    """Megatron-Bridge has no `model.micro_batch_size`, and its `model.fp8` is no switch."""
    text = """
    trainer: {devices: 8, num_nodes: 2, precision: bf16}
    model: {mcore_gpt: true, megatron_amp_O2: true, micro_batch_size: 4, global_batch_size: 64, fp8: false,
      tensor_model_parallel_size: 4, sequence_parallel: true, bias_dropout_add_fusion: true}
    """
    report = lint(text, "x.yaml")
    assert (report.dialect, report.findings) == (None, ())
    assert "NeMo 1" in report.dialect_reason


@pytest.mark.parametrize(
    ("default", "found"),
    [
        ("${SLURM_NNODES:-1}", []),  # 1 stands for a trial without the scheduler
        ("${SLURM_NNODES:-4}", []),
        ("${SLURM_NNODES:-2}", ["PL301 error expert_model_parallel_size"]),
        ("1", ["PL301 error expert_model_parallel_size"]),
    ],
)
def test_the_number_of_nodes_that_a_scheduler_gives_is_not_known(default: str, found: list[str]) -> None:
    text = f"""
    N={default}
    torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py --num-layers 32 --hidden-size 4096 --bf16 \\
      --num-attention-heads 32 --num-experts 8 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8
    """
    assert [code for code in codes(text, "x.sh") if "error" in code] == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", "mixed_precision: true\nnum_processes: 2\n"),
        ("x.yaml", "training: {batch_size: 32, compile: reduce-overhead}\n"),
        ("x.yaml", "optimizer: {implementation: adamw}\n"),
        ("x.yaml", "activation_checkpoint: {mode: true}\n"),
        ("x.yaml", "train_batch_size: 1.5\ngradient_accumulation_steps: 0\n"),
        ("x.py", "gradient_accumulation_steps = 0\n"),
        ("x.yaml", "fp16: {enabled: maybe}\n"),
        ("x.yaml", "distributed_type: ddp\n"),
        ("x.yaml", "trainer: {devices: 2, accumulate_grad_batches: 4, precision: bf16}\n"),
        ("x.yaml", "trainer: {devices: [0, 1], num_nodes: 0}\nmodel: {optim: {name: adamw}, bias: 2}\n"),
    ],
)
def test_words_that_any_program_has_show_no_framework(name: str, text: str) -> None:
    report = lint(text, name)
    assert (report.dialect, report.findings) == (None, ())


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("parallelism: {tensor_parallel_degree: 2}\n", "torchtitan"),
        ("activation_checkpoint: {mode: full}\ntraining: {seq_len: 8}\n", "torchtitan"),
        ("zero_optimization: {stage: 2}\n", "deepspeed"),
        ("train_batch_size: 8\nfp16: {enabled: true}\n", "deepspeed"),
        ("distributed_type: MULTI_GPU\nnum_processes: 8\n", "accelerate"),
        ("fsdp_config: {fsdp_version: 2}\n", "accelerate"),
    ],
)
def test_a_name_of_its_own_shows_one(text: str, dialect: str) -> None:
    assert lint(text, "x.yaml").dialect == dialect


VERL = "data.train_batch_size=%s actor_rollout_ref.actor.ppo_mini_batch_size=%s "
RANKS = "trainer.nnodes=1 trainer.n_gpus_per_node=6 actor_rollout_ref.rollout.tensor_model_parallel_size=4 "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (VERL % (0, 32), []),
        (VERL % (-1, 32), ["PL201 error global_batch_size"]),
        (VERL % (100, 32), ["PL301 error verl_mini_batch_size"]),
        (VERL % (16, 32), ["PL301 error verl_mini_batch_size"]),
        (VERL % (16, 32) + "actor_rollout_ref.actor.use_dynamic_bsz=True ", []),
        (RANKS, ["PL301 error rollout_tensor_parallel_size"]),
        (RANKS + "rollout.nnodes=1 rollout.n_gpus_per_node=4", []),
        (RANKS + "actor_rollout_ref.rollout.n_gpus_per_node=$N", []),
    ],
)
def test_batches_and_ranks_of_verl(text: str, found: list[str]) -> None:
    assert codes(f"python3 -m verl.trainer.main_ppo {text}\n", "x.sh") == found


def test_a_degree_of_verl_that_two_places_say_differently_is_not_known() -> None:
    place, degree = "actor_rollout_ref.actor", "ulysses_sequence_parallel_size"
    text = f"{place}.fsdp_config.{degree}=4\n"
    assert lint(text, "x.args").values == {f"{degree}": 4}
    assert lint(text + f"{place}.{degree}=1\n", "x.args").values == {}


@pytest.mark.parametrize("value", ["False", "None", "0"])
def test_a_flag_that_stands_for_a_value_stands_for_none_where_it_is_off(value: str) -> None:
    dump = f"-- arguments ---\n recompute_activations ..... {value}\n bf16 ..... True\n num_layers ..... 4\n"
    report = lint(f"---{dump}", "x.log")
    assert ("recompute_granularity" in report.values, report.findings) == (False, ())
    script = f"torchrun x.py --num-layers 4 --bf16 --recompute-activations={value}\n"
    assert "recompute_granularity" not in lint(script, "x.sh").values
    on = lint(script.replace(f"={value}", ""), "x.sh").values
    assert on["recompute_granularity"] == "selective"


FSDP2 = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_forward_prefetch: true}\n"
VERLS_FSDP2 = "actor_rollout_ref: {actor: {strategy: fsdp2, fsdp_config: {forward_prefetch: true}}}\n"
HELD = "A=(--num-layers 4 --bf16)\nB='--hidden-size 8'\n%s\ntorchrun x.py ${A[@]}\n"


@pytest.mark.parametrize(
    "taken",
    ["export B", "source rest.sh", ". rest.sh", "v=B; echo ${!v}", "envsubst < a > b", "run B", "C=B"],
)
def test_flags_that_may_be_handed_on_are_not_said_to_be_lost(taken: str) -> None:
    assert codes(HELD % "", "x.sh") == ["PL306 warning hidden_size"]
    assert codes(HELD % taken, "x.sh") == []


@pytest.mark.parametrize(
    "line",
    [
        *("set -a", "set -ea", "set -o allexport", "if true; then source rest.sh; fi", "x=1 . ./rest.sh"),
        *('source "$DIR/common.sh"', "source .env"),
    ],
)
def test_a_file_that_may_take_variables_may_take_flags(line: str) -> None:
    assert codes(HELD % line, "x.sh") == []


@pytest.mark.parametrize(
    ("dialect", "text", "found"),
    [
        ("accelerate", FSDP2, ["PL301 error fsdp_forward_prefetch"]),
        ("accelerate", FSDP2.replace("version: 2", "version: 1"), []),
        ("verl", VERLS_FSDP2, ["PL302 note verl_forward_prefetch"]),
        ("verl", VERLS_FSDP2.replace("fsdp2", "fsdp"), []),
    ],
)
def test_fsdp2_takes_no_forward_prefetch(dialect: Dialect, text: str, found: list[str]) -> None:
    assert codes(text, "x.yaml", dialect) == found


def test_torchtitans_global_batch_is_whole_local_ones() -> None:
    """4 samples on each of 8 ranks: 32 is one of them and 24 none; -1 is worked out."""
    assert codes("[training]\nlocal_batch_size = 4\nglobal_batch_size = -1\n", "x.toml") == []
    values: dict[str, Value] = {"local_batch_size": 4, "data_parallel_size": 8, "global_batch_size": 24}
    broken = check(Configuration(values=values, dialect="torchtitan"), {"global_batch_size": 12})
    assert [v.constraint and v.constraint.name for v in broken] == ["global-batch-over-local-batches"]
    assert check(Configuration(values=values, dialect="torchtitan"), {"global_batch_size": 32}) == ()
