"""Advice in jobs of torchtitan, DeepSpeed, Accelerate and verl's FSDP: their own settings, or none."""

from dataclasses import replace

import pytest

from perfdoc.analyzers.job import measure_job
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.lint.text import lint
from perfdoc.reports.advice import change_title
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.own_words import in_own_words, under_megatrons_names
from perfdoc.simulator.replay.gains import no_gains

BUCKET = 40 << 20
MICRO, GLOBAL, STEPS = "micro_batch_size", "global_batch_size", "gradient_accumulation_steps"
RANKS: dict[str, Value] = {
    "world_size": 16,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
}
ZERO: dict[str, Value] = {"zero_stage": 1}
INLINE: dict[str, Value] = {"accelerate_distributed_type": "DEEPSPEED"}
IN_A_FILE: dict[str, Value] = {**INLINE, "accelerate_deepspeed_file": "ds.json"}
FSDP: dict[str, Value] = {"accelerate_distributed_type": "FSDP"}
DDP: dict[str, Value] = {"accelerate_distributed_type": "MULTI_GPU"}


WHOLE: list[tuple[Dialect, dict[str, Value]]] = [
    ("verl", {"verl_strategy": "fsdp"}),
    ("verl", {"verl_strategy": "veomni"}),
    ("accelerate", FSDP),
    ("accelerate", DDP),
    ("deepspeed", ZERO),
]


def job(dialect: Dialect, **values: Value) -> Case:
    """A job of which nothing but its settings is known."""
    case = Case(captures=[], job=measure_job([]), gains=no_gains("", ""))
    return replace(case, configuration=Configuration(values=values, dialect=dialect))


def words(case: Case, knob: str, to: Value = True) -> list[Advice]:
    return in_own_words(case, advise(knob=knob, to=to, why="x"), to)


@pytest.mark.parametrize(
    ("dialect", "values", "knob", "to", "written"),
    [
        # Both count elements: no factor.
        ("deepspeed", ZERO, "bucket_size", BUCKET, "zero_optimization.reduce_bucket_size=41943040"),
        (
            "deepspeed",
            {"zero_stage": 3, "zero_overlap_comm": False},
            "overlap_param_gather",
            True,
            "zero_optimization.overlap_comm=true",
        ),
        ("deepspeed", {}, "micro_batch_size", 4, "train_micro_batch_size_per_gpu=4"),
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
        ("torchtitan", {}, "recompute_granularity", "full", "activation_checkpoint.mode=full"),
        ("torchtitan", {}, "recompute_granularity", None, "activation_checkpoint.mode=none"),
        ("torchtitan", {"torch_compile": True}, "fp8", "hybrid", "model.converters=[quantize.linear.float8]"),
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
    (bucket,) = words(job("accelerate", **IN_A_FILE), "bucket_size", BUCKET)
    assert (bucket.dialects, bucket.forbidden) == (
        {"deepspeed": "zero_optimization.reduce_bucket_size=41943040"},
        "",
    )
    # Without the file there is no place for them, and a file replaces the other settings of deepspeed_config.
    for knob, to in (("bucket_size", BUCKET), ("overlap_grad_reduce", True), ("grad_reduce_in_fp32", False)):
        (piece,) = words(job("accelerate", **INLINE), knob, to)
        assert (piece.dialects, "deepspeed_config_file" in piece.forbidden) == ({}, True), knob


@pytest.mark.parametrize(
    ("dialect", "values", "unknown", "knob", "written"),
    [
        # Accelerate takes stage 2 where none is named: never down to 1.
        ("accelerate", INLINE, (), "use_distributed_optimizer", None),
        ("accelerate", INLINE, (), "use_torch_fsdp2", "deepspeed_config.zero_stage=3"),
        ("accelerate", INLINE, ("zero_stage",), "use_torch_fsdp2", "not known"),
        # The stage stands in the file, and it may be a higher one.
        ("accelerate", IN_A_FILE, (), "use_distributed_optimizer", "not known"),
        ("deepspeed", {}, ("zero_stage",), "use_distributed_optimizer", "not known"),
        ("deepspeed", {}, (), "use_distributed_optimizer", "zero_optimization.stage=1"),
        # Stage 0, which a file without zero_optimization has: nothing reads them.
        ("deepspeed", {}, (), "bucket_size", "stage above 0"),
        ("deepspeed", {}, (), "overlap_grad_reduce", "stage above 0"),
        ("deepspeed", {}, ("zero_stage",), "overlap_grad_reduce", "zero_optimization.overlap_comm=true"),
        # Stage 3 overlaps unless it is told not to.
        ("deepspeed", {"zero_stage": 3}, (), "overlap_grad_reduce", None),
        ("deepspeed", {"zero_stage": 3}, (), "overlap_param_gather", None),
        (
            "deepspeed",
            {"zero_stage": 3},
            ("zero_overlap_comm",),
            "overlap_param_gather",
            "zero_optimization.overlap_comm=true",
        ),
    ],
)
def test_what_a_zero_stage_decides(
    dialect: Dialect, values: dict[str, Value], unknown: tuple[str, ...], knob: str, written: str | None
) -> None:
    case = job(dialect, **values)
    case = replace(case, configuration=replace(case.configuration, unknown=frozenset(unknown)))
    found = words(case, knob, BUCKET if knob == "bucket_size" else True)
    if written is None:
        assert found == []
    elif "=" in written:
        (piece,) = found
        assert ([*piece.dialects.values()], piece.forbidden) == ([written], "")
    else:
        (piece,) = found
        assert (piece.dialects, written in piece.forbidden) == ({}, True)


@pytest.mark.parametrize(
    ("dialect", "values"), [("accelerate", {**FSDP, "fsdp_version": 2}), ("verl", {"verl_strategy": "fsdp2"})]
)
def test_fsdp2_has_no_forward_prefetch(dialect: Dialect, values: dict[str, Value]) -> None:
    (piece,) = words(job(dialect, **values), "overlap_param_gather")
    assert "prefetches by itself" in piece.forbidden


@pytest.mark.parametrize(
    ("dialect", "values", "unknown"),
    [("accelerate", FSDP, "fsdp_version"), ("verl", {"verl_param_offload": True}, "verl_strategy")],
)
def test_one_fsdp_or_the_other_is_not_told_to_prefetch(
    dialect: Dialect, values: dict[str, Value], unknown: str
) -> None:
    case = job(dialect, **values)
    given = replace(case.configuration, unknown=frozenset({unknown}))
    (piece,) = words(replace(case, configuration=given), "overlap_param_gather")
    assert (piece.dialects, "FSDP2" in piece.forbidden) == ({}, True)
    (known,) = words(case, "overlap_param_gather")
    assert known.forbidden == ""


@pytest.mark.parametrize(
    ("dialect", "values", "filled", "beside"),
    [
        # 4 x 8 of a rank is 2 x 16; where DeepSpeed works the accumulation out, nothing is set beside.
        ("deepspeed", {MICRO: 4, STEPS: 8}, (), "gradient_accumulation_steps=16"),
        ("deepspeed", {MICRO: 4, STEPS: 8, GLOBAL: 256}, (), "gradient_accumulation_steps=16"),
        ("deepspeed", {MICRO: 4}, (), "gradient_accumulation_steps=2"),
        ("deepspeed", {MICRO: 4, GLOBAL: 256}, (), None),
        ("deepspeed", {MICRO: 4, GLOBAL: 256}, (GLOBAL,), "gradient_accumulation_steps=2"),  # by --set
        ("deepspeed", {STEPS: 8}, (), "the global batch changes"),
        # 4 samples on each of 16 / 2 ranks of DP are 32.
        ("torchtitan", {"local_batch_size": 4, **RANKS}, (), "training.global_batch_size=32"),
        ("torchtitan", {"local_batch_size": 4, GLOBAL: 64, **RANKS}, (), None),
        ("torchtitan", {"local_batch_size": 4}, (), "the global batch changes"),
        ("torchtitan", {"local_batch_size": 3, **RANKS}, (), "the global batch changes"),  # 24 over 2 x 8
        ("torchtitan", {"local_batch_size": 1, **RANKS}, (), "the global batch changes"),  # 8 over 2 x 8
        ("torchtitan", {"local_batch_size": 4, "pipeline_model_parallel_size": 2}, (), None),
        ("accelerate", DDP, (), "the global batch changes"),
        ("verl", {"verl_strategy": "fsdp", MICRO: 4}, (), None),
    ],
)
def test_half_the_micro_batch_keeps_the_global_batch_or_says_that_it_does_not(
    dialect: Dialect, values: dict[str, Value], filled: tuple[str, ...], beside: str | None
) -> None:
    case = job(dialect, **values)
    case = replace(case, configuration=replace(case.configuration, filled=frozenset(filled)))
    first, *others = words(case, MICRO, 2)
    assert first.forbidden == ""
    if beside is not None and "=" in beside:
        (other,) = others
        assert ([*other.dialects.values()], other.gain) == ([beside], None)
        assert first.together == [other.knob]
    else:
        assert others == []
    assert ("the global batch changes" in first.costs) == (beside == "the global batch changes")


def test_a_batch_that_does_not_divide_torchtitans_global_one_is_refused() -> None:
    # 8 ranks of DP: 32 is twice 2 x 8, and no multiple of 3 x 8.
    given: dict[str, Value] = {"local_batch_size": 4, GLOBAL: 32, **RANKS}
    for to, refused in ((2, False), (3, True), (8, True)):
        (piece,) = words(job("torchtitan", **given), MICRO, to)
        assert ("local_batch_size x data-parallel" in piece.forbidden) == refused, to


def test_a_pipeline_that_cannot_be_told_leaves_torchtitans_micro_batch_open() -> None:
    case = job("torchtitan", local_batch_size=8)
    given = replace(case.configuration, unknown=frozenset({"pipeline_model_parallel_size"}))
    (piece,) = words(replace(case, configuration=given), MICRO, 4)
    assert (piece.dialects, "pipeline is not known" in piece.forbidden) == ({}, True)
    assert MICRO not in under_megatrons_names("pytorch", given).values


@pytest.mark.parametrize("engine", ["fsdp", "veomni", "megatron"])
@pytest.mark.parametrize(
    ("values", "unknown", "written"),
    [
        ({}, (), "ppo_micro_batch_size_per_gpu=2"),
        ({"verl_dynamic_batch": False}, (), "ppo_micro_batch_size_per_gpu=2"),
        ({"verl_dynamic_batch": True, "verl_max_tokens": 24_000}, (), "ppo_max_token_len_per_gpu=12000"),
        ({"verl_dynamic_batch": True}, (), None),
        # Each sample is up to 20,000 tokens long.
        (
            {
                "verl_dynamic_batch": True,
                "verl_max_tokens": 24_000,
                "verl_max_prompt_length": 10_000,
                "verl_max_response_length": 10_000,
            },
            (),
            None,
        ),
        ({}, ("verl_dynamic_batch",), None),
    ],
)
def test_where_verl_cuts_by_tokens_its_tokens_are_halved(
    engine: str, values: dict[str, Value], unknown: tuple[str, ...], written: str | None
) -> None:
    case = job("verl", verl_strategy=engine, **{MICRO: 4}, **values)
    case = replace(case, configuration=replace(case.configuration, unknown=frozenset(unknown)))
    (piece,) = words(case, MICRO, 2)
    assert bool(piece.forbidden) == (written is None)
    if written is not None:
        assert piece.dialects["verl"] == f"actor_rollout_ref.actor.{written}"
        # What is published says of one setting what it is and what it becomes.
        tokens = "verl_max_tokens" in values
        assert (piece.knob, piece.to_value) == (("verl_max_tokens", "12000") if tokens else (MICRO, "2"))
        assert not tokens or piece.from_value == "24000"


@pytest.mark.parametrize(("now", "to", "tokens"), [(6, 2, 5461), (3, 1, 5461), (4, 3, 12_288)])
def test_tokens_are_rounded_down(now: int, to: int, tokens: int) -> None:
    case = job("verl", verl_strategy="fsdp", verl_dynamic_batch=True, verl_max_tokens=16_384, **{MICRO: now})
    (piece,) = words(case, MICRO, to)
    assert (piece.forbidden, piece.to_value) == ("", str(tokens))


@pytest.mark.parametrize(("dialect", "values"), [*WHOLE, ("torchtitan", {})])
@pytest.mark.parametrize("to", ["selective", "full"])
def test_what_recomputes_whole_layers_has_neither_words_nor_gain_of_a_few_modules(
    dialect: Dialect, values: dict[str, Value], to: str
) -> None:
    gain = Gain(method="replay", low_ms=1.0, mid_ms=1.0, high_ms=1.0, assumptions=[])
    costs = "a few percent of compute"
    piece = advise(knob="recompute_granularity", to=to, why="recomputes layernorm", costs=costs, gain=gain)
    (found,) = in_own_words(job(dialect, **values), piece, value_of(piece))
    assert (found.forbidden, found.gain, "layernorm" in found.why, costs in found.costs) == (
        "",
        None,
        *2 * [False],
    )
    whole = to == "full" or dialect != "torchtitan"
    assert ("whole layers" in found.why, "a third" in found.costs) == (whole, whole)


def test_a_larger_global_batch_comes_with_its_accumulation() -> None:
    given: dict[str, Value] = {MICRO: 1, STEPS: 8, GLOBAL: 64}
    first, other = words(job("deepspeed", **given), GLOBAL, 128)
    assert [*first.dialects.values(), *other.dialects.values()] == [
        "train_batch_size=128",
        "gradient_accumulation_steps=16",
    ]
    assert len(words(job("deepspeed", **{MICRO: 1, GLOBAL: 64}), GLOBAL, 128)) == 1


def test_a_switch_brings_what_it_needs() -> None:
    off: dict[str, Value] = {"torch_compile": False, "tensor_model_parallel_size": 2}
    for values in (off, {"tensor_model_parallel_size": 2}):
        tp, compiled = words(job("torchtitan", **values), "tp_comm_overlap")
        assert (tp.forbidden, compiled.forbidden) == ("", "")
        assert [*compiled.dialects.values()] == ["compile.enable=true"]
    (alone,) = words(job("torchtitan", torch_compile=True, tensor_model_parallel_size=2), "tp_comm_overlap")
    assert alone.forbidden == ""
    # FP8 without a compiler is slower than BF16: the rule that says so brings what mends it.
    fp8, compiled = words(job("torchtitan", torch_compile=False, model_converters=("mx",)), "fp8", "hybrid")
    assert [*fp8.dialects.values(), *compiled.dialects.values()] == [
        "model.converters=[mx,quantize.linear.float8]",
        "compile.enable=true",
    ]
    assert words(job("torchtitan", model_converters=("float8",)), "fp8", "hybrid") == []


def test_the_switch_of_older_torchtitan_is_its_fp8() -> None:
    assert words(job("torchtitan", float8_linear=True, torch_compile=True), "fp8", "hybrid") == []
    (piece,) = words(job("torchtitan", float8_linear=False, torch_compile=True), "fp8", "hybrid")
    assert (piece.dialects, piece.forbidden) == ({"torchtitan": "float8.enable_float8_linear=true"}, "")
    case = job("torchtitan", torch_compile=True)
    given = replace(case.configuration, unknown=frozenset({"float8_linear"}))
    (piece,) = words(replace(case, configuration=given), "fp8", "hybrid")
    assert (piece.dialects, "not known" in piece.forbidden) == ({}, True)


def test_what_is_so_already_is_left_out() -> None:
    assert words(job("deepspeed", zero_stage=1, zero_overlap_comm=True), "overlap_grad_reduce") == []
    assert words(job("deepspeed", zero_stage=2), "use_distributed_optimizer") == []  # not down to 1
    (smaller,) = words(job("deepspeed", zero_stage=1, zero_reduce_bucket_size=5e8), "bucket_size", BUCKET)
    assert smaller.from_value == "500000000.0"


def test_accelerate_refuses_mixed_precision_beside_a_file_of_deepspeeds() -> None:
    given = {"accelerate_distributed_type": "DEEPSPEED", "accelerate_deepspeed_file": "a.json"}
    (piece,) = words(job("accelerate", **given), "fp8", "hybrid")
    assert (piece.dialects, "deepspeed_config_file" in piece.forbidden) == ({}, True)
