"""Every knob of the catalogue is a setting that reaches megatron-core, or is refused with a reason."""

from __future__ import annotations

import importlib
from enum import Enum
from typing import Any

import pytest

from perfdoc.knobs.knob import Knob
from perfdoc.knobs.load import catalogue
from perfdoc.trainer.config import Config, resolve
from perfdoc.trainer.config.resolve import KEYS, REFUSED, name_here, why_refused
from perfdoc.trainer.layout import plan
from tests.megatron_core import import_core
from tests.trainer.launch import need_megatron


@pytest.mark.parametrize("knob", catalogue().values(), ids=lambda knob: knob.id)
def test_no_knob_of_the_catalogue_is_an_unknown_key(knob: Knob) -> None:
    assert (knob.id in KEYS) != bool(why_refused(knob.id)), "a setting, or refused: one of the two"
    if knob.id not in KEYS:
        with pytest.raises(ValueError, match=r".") as caught:
            resolve("tiny", [f"{knob.id}=null"])
        assert "unknown key" not in str(caught.value)
        assert why_refused(knob.id) in str(caught.value)


def test_the_refused_are_in_the_catalogue_and_the_reason_says_what_to_do() -> None:
    assert set(REFUSED) <= set(catalogue())
    assert all(len(why) > 15 for why in REFUSED.values())


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("profile_start_step", "profile_step_start"),
        ("profiling.profile_end_step", "profile_step_end"),
        ("comm_overlap.tp_comm_overlap_cfg", "tp_comm_overlap_cfg"),
        ("PipelineOverlapCfg.num_sm", "tp_overlap_num_sm"),
        ("ddp_bucket_size", "bucket_size"),
        ("train.manual_gc_eval", "manual_gc_eval"),
        ("GarbageCollectionCallback.gc_interval_val", "manual_gc_interval_val"),
        ("use_custom_fsdp", "use_megatron_fsdp"),
        ("enable_cuda_graph", "cuda_graph_impl"),
    ],
)
def test_a_name_of_a_guide_is_told_what_it_is_here(written: str, here: str) -> None:
    assert name_here(written) == here
    with pytest.raises(ValueError, match=rf"\.{here}(\?| here)"):
        resolve("tiny", [f"{written}=1"])


TE = "transformer_impl=transformer_engine"
EXPERTS = ["num_moe_experts=4", "params_dtype=bf16"]
EP_OVERLAP = [*EXPERTS, "expert_model_parallel_size=2", "overlap_moe_expert_parallel_comm=true"]
PP = ["pipeline_model_parallel_size=2"]
AWARE = ["optimizer_cpu_offload=true", "use_precision_aware_optimizer=true"]
WITH: dict[str, list[str]] = {
    "tensor_model_parallel_size": ["tensor_model_parallel_size=2"],
    "sequence_parallel": ["tensor_model_parallel_size=2", "sequence_parallel=true"],
    "virtual_pipeline_model_parallel_size": [*PP, "virtual_pipeline_model_parallel_size=2"],
    "num_layers_in_first_pipeline_stage": [*PP, "num_layers_in_first_pipeline_stage=1"],
    "num_layers_in_last_pipeline_stage": [*PP, "num_layers_in_last_pipeline_stage=1"],
    "account_for_embedding_in_pipeline_split": [
        *[*PP, "num_layers=5", "account_for_embedding_in_pipeline_split=true"]
    ],
    "account_for_loss_in_pipeline_split": [*PP, "num_layers=5", "account_for_loss_in_pipeline_split=true"],
    "microbatch_group_size_per_vp_stage": ["microbatch_group_size_per_vp_stage=3"],
    "hierarchical_context_parallel_sizes": ["hierarchical_context_parallel_sizes=[2,4]"],
    "expert_model_parallel_size": [*EXPERTS, "expert_model_parallel_size=2"],
    "expert_tensor_parallel_size": ["expert_tensor_parallel_size=2"],
    "cp_comm_type": ["cp_comm_type=a2a+p2p"],
    "overlap_p2p_comm_warmup_flush": ["overlap_p2p_comm=true", "overlap_p2p_comm_warmup_flush=true"],
    "defer_embedding_wgrad_compute": [
        *[*PP, "gradient_accumulation_fusion=true", "defer_embedding_wgrad_compute=true"]
    ],
    "wgrad_deferral_limit": ["wgrad_deferral_limit=3"],
    "overlap_moe_expert_parallel_comm": EP_OVERLAP,
    "delay_wgrad_compute": [*EP_OVERLAP, "delay_wgrad_compute=true"],
    "ep_overlap_early_attn_memory_release": [*EP_OVERLAP, "ep_overlap_early_attn_memory_release=true"],
    "first_last_layers_bf16": ["fp8=hybrid", "fp8_recipe=tensorwise", "first_last_layers_bf16=true"],
    "fp8_param_gather": ["fp8=hybrid", "fp8_param_gather=true"],
    "reuse_grad_buf_for_mxfp8_param_ag": [
        *["fp8=hybrid", "fp8_recipe=mxfp8", "fp8_param_gather=true"],
        "reuse_grad_buf_for_mxfp8_param_ag=true",
    ],
    "moe_router_padding_for_quantization": [
        *[*EXPERTS, "fp8=hybrid", "moe_router_padding_for_quantization=true"]
    ],
    "recompute_granularity": ["recompute_granularity=selective", "recompute_modules=[mlp]"],
    "moe_pad_expert_input_to_capacity": [
        *[*EXPERTS, "moe_expert_capacity_factor=1.0", "moe_pad_expert_input_to_capacity=true"]
    ],
    "optimizer_offload_fraction": ["optimizer_offload_fraction=0.5"],
    "transformer_impl": ["transformer_impl=transformer_engine"],
    "recompute_method": [*["recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1"]],
    "recompute_num_layers": [
        *["recompute_granularity=full", "recompute_method=block", "recompute_num_layers=2"]
    ],
    "recompute_modules": ["recompute_granularity=selective", "recompute_modules=[mlp]"],
    "offload_modules": ["offload_modules=[core_attn]"],
    "fine_grained_activation_offloading": [
        *["fine_grained_activation_offloading=true", "offload_modules=[core_attn]"]
    ],
    "cpu_offloading": ["cpu_offloading=true", "cpu_offloading_num_layers=2", TE],
    "cuda_graph_scope": ["cuda_graph_scope=[attn]"],
    "cuda_graph_impl": ["cuda_graph_impl=local", "use_te_rng_tracker=true"],
    "use_precision_aware_optimizer": AWARE,
    "optimizer_cpu_offload": AWARE,
    **{
        name: [*AWARE, f"{name}={value}"]
        for name, value in (
            *(("exp_avg_dtype", "bf16"), ("exp_avg_sq_dtype", "bf16")),
            *(("main_grads_dtype", "bf16"), ("main_params_dtype", "fp16")),
        )
    },
    "high_priority_stream_groups": ["high_priority_stream_groups=[dp]"],
    "nccl_communicator_config_path": ["nccl_communicator_config_path=x.yaml"],
    "sharp_enabled_group": ["use_sharp=true", "sharp_enabled_group=dp"],
    "pipeline_model_parallel_layout": [*PP, "pipeline_model_parallel_layout=Et|tttL"],
    "num_moe_experts": EXPERTS,
    "num_attention_heads": ["num_attention_heads=8"],
    "num_query_groups": ["num_query_groups=4"],
    "kv_channels": ["kv_channels=16"],
    "moe_router_topk": [*EXPERTS, "moe_router_topk=3"],
    "moe_shared_expert_intermediate_size": [*EXPERTS, "moe_shared_expert_intermediate_size=64"],
}
"""What it takes to set a knob to another value than its default, where that is more than the value."""


def other_value(knob: Knob, config: Config) -> str:
    """An override that is not the default."""
    now = getattr(getattr(config, KEYS[knob.id]), knob.id)
    if isinstance(now, bool) or knob.type == "bool":
        return f"{knob.id}={str(now is not True).lower()}"
    if knob.choices:
        return f"{knob.id}={next(c for c in knob.choices if c != now)}"
    return f"{knob.id}={1.5 if knob.type == 'float' else (now or 1) + 1}"


def plain(value: Any) -> Any:
    """megatron-core's value as ours."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Enum):
        return value.name
    text = str(value)
    return {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16"}.get(text, value)


CORE = [
    (knob, spelling.name)
    for knob in catalogue().values()
    if knob.id in KEYS
    for spelling in knob.spelled("megatron_core")
]


@pytest.mark.parametrize(("knob", "field"), CORE, ids=lambda value: getattr(value, "id", value))
def test_a_setting_reaches_megatron_core(knob: Knob, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real dataclasses are built, so what they refuse fails here.
    need_megatron()
    import_core("megatron.core.transformer.transformer_config")
    theirs = importlib.import_module("perfdoc.trainer.megatron_config")
    monkeypatch.setattr(theirs, "uses_transformer_engine", lambda config: True)
    _as_if_transformer_engine_were_there(monkeypatch)
    base = resolve("tiny").config
    needed = WITH.get(knob.id) or [other_value(knob, base)]
    if field.startswith("TransformerConfig.moe_") and EXPERTS[0] not in needed:
        needed = [*EXPERTS, *needed]
    config = resolve("tiny", ["eval_interval=null", *needed]).config
    ours = getattr(getattr(config, KEYS[knob.id]), knob.id)
    assert ours != getattr(getattr(base, KEYS[knob.id]), knob.id), "or nothing is compared"
    owner, _, name = field.partition(".")
    built = built_by(theirs, owner, config, monkeypatch)
    found = built[name] if isinstance(built, dict) else getattr(built, name)
    expected = list(ours) if isinstance(ours, tuple) else ours
    assert plain(found) == expected or str(found) == expected


def _as_if_transformer_engine_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """megatron-core asks for its version and functions before it takes some settings."""
    for name in ("transformer.transformer_config", "optimizer.optimizer_config"):
        module = importlib.import_module(f"megatron.core.{name}")
        monkeypatch.setattr(module, "is_te_min_version", lambda version: True)
    for name, functions in (
        ("models.common.embeddings.rope_utils", ("fused_apply_rotary_pos_emb",)),
        (
            "transformer.moe.moe_utils",
            (
                *("fused_permute", "fused_permute_with_probs", "fused_sort_chunks_by_index"),
                *("fused_sort_chunks_by_index_with_probs", "fused_unpermute"),
            ),
        ),
    ):
        module = importlib.import_module(f"megatron.core.{name}")
        for function in functions:
            monkeypatch.setattr(module, function, print, raising=False)


def built_by(theirs: Any, owner: str, config: Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class, or the arguments of initialize_model_parallel, that the trainer makes of a configuration."""
    parallel = config.parallel
    ranks = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size
    ranks *= parallel.context_parallel_size * parallel.expert_model_parallel_size
    layout_of = importlib.import_module("perfdoc.trainer.layout")
    layout = layout_of._arrange(resolve("tiny", ["data_parallel_size=null"]).config, max(1, ranks))
    if owner == "TransformerConfig":
        layout = importlib.import_module("dataclasses").replace(
            layout, pp=parallel.pipeline_model_parallel_size
        )
        return theirs.transformer_config(config, layout)
    if owner == "OptimizerConfig":
        return theirs.optimizer_config(config)
    if owner == "DistributedDataParallelConfig":
        return theirs.ddp_config(config)
    assert owner == "initialize_model_parallel"
    session = importlib.import_module("perfdoc.trainer.session")
    state = import_core("megatron.core.parallel_state")
    given: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def initialize(**arguments: Any) -> None:
        given.update(arguments)
        raise Stop

    monkeypatch.setattr(state, "initialize_model_parallel", initialize)
    with pytest.raises(Stop):
        session.start_layout(config, layout)
    return given


def test_the_table_speaks_of_settings() -> None:
    assert set(WITH) <= set(KEYS)
    assert plan(resolve("tiny").config, 2, "cpu").world_size == 2
