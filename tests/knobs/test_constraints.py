"""Constraints against megatron-core's own checks, and proposals against brute force."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from perfdoc.knobs.check import check, evaluate, violations
from perfdoc.knobs.condition import compiled, settings_of
from perfdoc.knobs.configuration import DERIVED_FROM, Configuration, Undecided, View
from perfdoc.knobs.constraints import constraints
from perfdoc.knobs.knob import DIALECTS, Dialect, Value
from perfdoc.knobs.load import catalogue
from tests.amount import tries
from tests.megatron_core import import_core

CHOICES: Mapping[str, tuple[Value, ...]] = {
    "num_layers": (4, 6, 8, 12),
    "num_attention_heads": (4, 6, 8),
    "num_query_groups": (None, 2, 3, 4),
    "hidden_size": (48,),
    "tensor_model_parallel_size": (1, 1, 2, 3, 4),
    "pipeline_model_parallel_size": (1, 1, 2, 4),
    "virtual_pipeline_model_parallel_size": (None, None, 2, 3),
    "context_parallel_size": (1, 1, 2),
    "cp_comm_type": (None, "p2p", ("p2p", "a2a", "p2p", "a2a")),
    "sequence_parallel": (False, True),
    "num_layers_in_first_pipeline_stage": (None, None, None, 1, 2),
    "num_layers_in_last_pipeline_stage": (None, None, None, 1, 2),
    "pipeline_model_parallel_layout": (
        *(None, None, None, None, None, "Ett|ttL", "Et|t|t|tL", "Et*2,|(t|)*2L", "tt|ttL", "Et|m|tt|tL"),
        *("Ettt|tttL", "Ett|tt|m|L"),
    ),
    "account_for_embedding_in_pipeline_split": (False, False, True),
    "account_for_loss_in_pipeline_split": (False, False, True),
    "overlap_p2p_comm": (False, True),
    "batch_p2p_comm": (False, True),
    "overlap_p2p_comm_warmup_flush": (False, False, True),
    "defer_embedding_wgrad_compute": (False, False, True),
    "gradient_accumulation_fusion": (False, True),
    "wgrad_deferral_limit": (0, -1, 2),
    "num_moe_experts": (None, None, 8),
    "expert_model_parallel_size": (1, 1, 2),
    "expert_tensor_parallel_size": (None, 1, 2),
    "add_bias_linear": (False, False, True),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "moe_shared_expert_intermediate_size": (None, 32),
    "moe_shared_expert_overlap": (False, False, True),
    "moe_expert_capacity_factor": (None, 1.0),
    "moe_pad_expert_input_to_capacity": (False, False, True),
    "moe_router_load_balancing_type": ("aux_loss", "sinkhorn"),
    "moe_grouped_gemm": (False, True),
    "overlap_moe_expert_parallel_comm": (False, False, True),
    "delay_wgrad_compute": (False, False, True),
    "ep_overlap_early_attn_memory_release": (False, False, True),
    "bf16": (False, True),
    "fp16": (False, False, True),
    "mtp_num_layers": (None, None, 1, 2),
    "recompute_granularity": (None, None, "full", "selective"),
    "recompute_method": (None, "uniform", "block"),
    "recompute_num_layers": (None, 1),
    "recompute_modules": (None, ("core_attn",), ("moe_act",), ("shared_experts", "mlp")),
    "distribute_saved_activations": (False, False, True),
    "cpu_offloading": (False, False, True),
    "cpu_offloading_num_layers": (0, 3, 4),
    "fine_grained_activation_offloading": (False, False, True),
    "offload_modules": (None, ("core_attn",), ("attn_proj",)),
    "cuda_graph_impl": ("none", "none", "local", "transformer_engine"),
    "cuda_graph_scope": (None, ("full_iteration",), ("moe",), ("moe_router", "moe_preprocess"), ("attn",)),
}
"""What may be drawn; the benign values more often, so that a good part of the configurations is sound."""

CORE_DOES_NOT_CHECK = frozenset(
    {
        *("vpp-needs-pp", "layers-over-stages", "experts-with-tp-need-sequence-parallel"),
        *("overlap-p2p-excludes-batching", "experts-over-ep", "sequence-over-cp", "ulysses-heads-over-cp"),
    }
)
"""Rules of which the dataclass knows nothing (parallel_state or the launcher refuses), or not all cases."""


def draw(rng: random.Random, names: int | None = None) -> dict[str, Value]:
    chosen = rng.sample(sorted(CHOICES), names) if names else list(CHOICES)
    values = {name: rng.choice(CHOICES[name]) for name in chosen}
    for name in ("num_layers", "num_attention_heads", "hidden_size"):
        values.setdefault(name, CHOICES[name][0])
    return values


def refused_by_core(values: Mapping[str, Value]) -> str:
    """megatron-core's own words; empty where it takes the configuration."""
    module = import_core("megatron.core.transformer.transformer_config")
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        try:
            module.TransformerConfig(**fields, pipeline_dtype=torch.float32)
        except (ValueError, AssertionError) as error:
            return str(error) or "refused"
    return ""


def test_what_the_constraints_admit_megatron_core_takes_and_what_it_refuses_they_forbid() -> None:
    # The two are written apart from each other: core's checks are the oracle.
    rng = random.Random(5)
    admitted = refused = 0
    for number in range(1500):
        values = draw(rng, names=rng.randint(3, 14) if number % 3 else None)
        configuration = Configuration(values=values, dialect="megatron_core", complete=True)
        ours = {v.constraint.name for v in violations(configuration) if v.constraint.kind == "forbidden"}  # type: ignore[union-attr]
        theirs = refused_by_core(values)
        if theirs:
            refused += 1
            assert ours, f"core refuses, and nothing forbids: {theirs}\n{values}"
        elif ours - CORE_DOES_NOT_CHECK:
            raise AssertionError(f"core takes what {ours - CORE_DOES_NOT_CHECK} forbid: {values}")
        else:
            admitted += not ours
    assert admitted > 150
    assert refused > 300


def breaks(configuration: Configuration) -> set[str]:
    """Brute force: every predicate by itself."""
    found = set()
    for constraint in constraints():
        if constraint.dialects and configuration.dialect not in constraint.dialects:
            continue
        try:
            if constraint.broken(View(configuration)):
                found.add(constraint.name)
        except (Undecided, TypeError, ValueError, ArithmeticError):
            continue
    return found


MORE: Mapping[str, tuple[Value, ...]] = {
    "hierarchical_context_parallel_sizes": (None, (2, 2), (4, 2)),
    "pytorch_cuda_alloc_conf": (None, "expandable_segments:True", "max_split_size_mb:512"),
    "optimizer_name": ("adam", "muon"),
    "num_moe_experts": (None, 8, 64),
    "moe_router_num_groups": (None, 3, 8),
    "moe_router_load_balancing_type": ("aux_loss", "sinkhorn", ("aux_loss", "seq_aux_loss")),
    "moe_layer_freq": ("1", "2"),
    "experimental_attention_variant": (None, "dsa", "gated_delta_net"),
    "hidden_size": (48, 50),
    "moe_router_topk": (1, 2, 16),
    "position_embedding_type": ("rope", "learned_absolute"),
    "expert_model_parallel_size": (1, 2, 3, 4),
    "context_parallel_size": (1, 2, 4),
    "cuda_graph_scope": (
        *(None, ("moe", "moe_router"), ("moe_preprocess",), ("full_iteration",), ("moe",), ("mlp",)),
        *(("full", "attn"), ("moe_router",)),
    ),
    "cp_comm_type": (None, "p2p", "a2a", "a2a+p2p", ("p2p", "a2a")),
    "recompute_modules": (
        *(None, ("mla_up_proj",), ("moe_act",), ("shared_experts",), ("layernorm",), ("core_attn",)),
        *(("mlp",), ("moe",)),
    ),
    "recompute_num_layers": (None, 1, 9),
    "world_size": (1, 8, 12, 16),
    "zero_stage": (0, 1, 2, 3),
    "fsdp_backward_prefetch": ("NO_PREFETCH", "BACKWARD_PRE"),
    "verl_strategy": ("fsdp", "fsdp2", "megatron"),
    "verl_mini_batch_size": (8, 12, 64),
    "model_converters": ((), ("float8",), ("mx",)),
    "accelerate_fp8_backend": ("AO", "MSAMP"),
    "fsdp_reshard_after_forward": ("true", "FULL_SHARD"),
    "rollout_mode": ("sync", "async"),
    "rollout_engine": ("vllm", "sglang"),
    "accelerate_distributed_type": ("DEEPSPEED", "FSDP", "MULTI_GPU"),
    "global_batch_size": (12, 16, 32),
    "micro_batch_size": (1, 2),
}


def _at_default(name: str, values: Mapping[str, Value], configuration: Configuration) -> bool:
    """Whether a knob is not set, or set to what it is anyway: then it has no effect that anybody wanted."""
    defaults = {str(d): v for d, v in catalogue()[name].defaults.items()}
    return name not in values or values[name] == defaults.get(str(configuration.dialect), object())


def any_value(rng: random.Random, name: str) -> Value:
    knob = catalogue()[name]
    if name in MORE or name in CHOICES:
        return rng.choice(MORE.get(name) or CHOICES[name])
    if knob.nullable and rng.random() < 0.4:
        return None
    if knob.type == "bool":
        return rng.random() < 0.5
    if knob.type == "int":
        return rng.choice(knob.choices) if knob.choices else rng.choice((int(knob.min or 0), 1, 2, 4, 8))
    if knob.type == "float":
        return rng.choice((0.0, 0.5, 1.0))
    if knob.choices:
        one = rng.choice(knob.choices)
        return (one,) if knob.type in ("list", "int_list") else one
    return rng.choice((None, "x"))


def test_no_admitted_change_breaks_a_rule_whatever_the_configuration() -> None:
    rng = random.Random(7)
    names = sorted(n for n, k in catalogue().items() if k.type != "command")
    dialects = (*(d for d in DIALECTS if d != "env"), None)
    admitted = 0
    count = tries(500, 3_000)
    for _ in range(count):
        values = {n: any_value(rng, n) for n in rng.sample(names, rng.randint(2, 25))}
        configuration = Configuration(
            values=values, dialect=rng.choice(dialects), complete=rng.random() < 0.5
        )
        change = {n: any_value(rng, n) for n in rng.sample(names, rng.randint(1, 2))}
        refusals = check(configuration, change)
        if not refusals:
            admitted += 1
            new = breaks(configuration.with_changes(change)) - breaks(configuration)
            after = {**values, **change}
            silent = {
                c.name
                for c in constraints()
                if c.name in new and _at_default(c.subject, after, configuration)
            }
            assert new <= silent, f"{change} breaks {new} in {values}"
    assert 0.3 * count < admitted < 0.99 * count


def test_what_a_rule_reads_is_known_beforehand() -> None:
    rng = random.Random(3)
    names = sorted(n for n, k in catalogue().items() if k.type != "command")
    for _ in range(tries(50, 200)):
        view_of = Configuration(values={n: any_value(rng, n) for n in names}, dialect="megatron_core")
        for constraint in constraints():
            view = View(view_of)
            try:
                constraint.broken(view)
            except (Undecided, ValueError, TypeError, ArithmeticError):
                continue
            derived = {name for sources in DERIVED_FROM.values() for name in sources}
            assert view.read - derived <= constraint.knobs, constraint.name
    (rule,) = [c for c in constraints() if c.name == "sequence-parallel-needs-tp"]
    assert rule.knobs == {"sequence_parallel", "tensor_model_parallel_size"}


def test_a_wrong_value_is_refused_before_any_rule() -> None:
    empty = Configuration(dialect="megatron_core", complete=True)
    (refusal,) = check(empty, {"tensor_model_parallel_size": 0})
    assert (refusal.constraint, refusal.knob) == (None, "tensor_model_parallel_size")
    assert "at least 1" in refusal.words
    assert (
        check(empty, {"sequence_parallel": "yes, please"})[0].words == "sequence_parallel takes true or false"
    )
    with pytest.raises(ValueError, match="no knob tp"):
        check(empty, {"tp": 8})


def test_a_rule_without_its_facts_is_not_broken() -> None:
    # 6 heads over TP 4 cannot be; without the number of heads nobody knows.
    job = Configuration(values={"num_attention_heads": 6})
    assert [v.constraint and v.constraint.name for v in check(job, {"tensor_model_parallel_size": 4})] == [
        "heads-over-tp"
    ]
    assert check(Configuration(), {"tensor_model_parallel_size": 4}) == ()


def test_ranks_and_micro_batches_are_derived() -> None:
    # 2 nodes x 8 ranks, TP 2 x PP 2: DP 4. 24 / (1 x 4) = 6 micro-batches, even; 20 / 4 = 5 are not.
    job = Configuration(
        values={
            **{"nnodes": 2, "nproc_per_node": 8, "tensor_model_parallel_size": 2, "micro_batch_size": 1},
            **{"pipeline_model_parallel_size": 2, "context_parallel_size": 1, "global_batch_size": 24},
            **{"virtual_pipeline_model_parallel_size": 2, "microbatch_group_size_per_vp_stage": None},
        }
    )
    assert check(job, {"global_batch_size": 24}) == ()
    assert [v.constraint and v.constraint.name for v in check(job, {"global_batch_size": 20})] == [
        "interleaving-needs-multiple-of-pp"
    ]
    assert [v.constraint and v.constraint.name for v in check(job, {"context_parallel_size": 3})] == [
        "ranks-over-degrees"
    ]


def test_names_and_mendings_are_of_the_catalogue() -> None:
    assert len({c.name for c in constraints()}) == len(constraints())
    for constraint in constraints():
        assert constraint.subject in catalogue()
        assert constraint.rule
        for name, value in constraint.fix:
            assert value is None or check(Configuration(), {name: value}) == (), (constraint.name, name)


@pytest.mark.parametrize(
    ("constraint", "dialect"),
    [
        pytest.param(constraint, dialect, id=f"{constraint.name}-{dialect}")
        for constraint in constraints()
        for dialect in constraint.dialects or ("megatron_core",)
    ],
)
def test_every_rule_can_be_broken_and_its_mending_mends_it(constraint: Any, dialect: Dialect) -> None:
    rng = random.Random(11)
    names = sorted(n for n, k in catalogue().items() if k.type != "command")
    for _ in range(40_000):
        first = rng.choice([sorted(constraint.knobs), names])
        probe: dict[str, Value] = {n: any_value(rng, n) for n in rng.sample(first, min(2, len(first)))}
        for _ in range(12):  # set what the rule asks for until it is decided
            try:
                view = View(Configuration(values=probe, dialect=dialect))
                constraint.broken(view)
                break
            except Undecided as missing:
                name = str(missing)
                probe[name if name != "data_parallel_size" else "world_size"] = any_value(rng, name)
            except (TypeError, ValueError, ArithmeticError):
                break
        broken = evaluate(constraint, Configuration(values=probe, dialect=dialect))
        if broken is not None:
            if constraint.fix:
                mended = Configuration(values={**probe, **dict(constraint.fix)}, dialect=dialect)
                if constraint.name in breaks(mended):
                    continue  # there is more wrong here than the mending is for
            return
    pytest.fail(f"{constraint.name}: nothing breaks it, or its mending never helps")


def test_every_condition_is_one() -> None:
    """They are compiled when they are asked; a wrong one would count as never broken."""
    for constraint in constraints():
        with suppress(Undecided, TypeError, ArithmeticError):
            constraint.broken(View(Configuration(values={})))
    for wrong in ("tp >", "no_such_knob > 1", "sizes(tp) == 1", "__import__('os')"):
        with pytest.raises(ValueError, match=r"no condition|no knob|no function"):
            compiled(wrong, {})(View(Configuration(values={})))
    assert settings_of("'tp' in items(cuda_graph_scope) or \"pp\" == fp8", {}) == {"cuda_graph_scope", "fp8"}
