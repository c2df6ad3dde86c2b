"""Settings of the catalogue that this trainer does not have, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.knobs.knob import DIALECT_TITLES, Dialect
from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.knobs.naming.meaning import names_of

_DECODER = (
    "the reference model is a decoder without an encoder, and megatron-core 0.16.1 has no encoder degrees"
)
_DTYPE = "give precision.params_dtype"
_TORCHRUN = "is torchrun's: give it behind `--`, as in `perfdoc run tiny -- --nproc-per-node 8`"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "encoder_pipeline_model_parallel_size": _DECODER,
        "encoder_tensor_model_parallel_size": _DECODER,
        "hybrid_context_parallel": "gives samples of unequal length unequal CP sizes; here all have "
        "seq_length tokens",
        "ulysses_sequence_parallel_size": "is of verl's FSDP engine; give context_parallel_size with "
        "cp_comm_type=a2a",
        "fsdp_strategy_nemo": "NeMo's selector; give fsdp.use_megatron_fsdp or parallel.use_torch_fsdp2",
        "moe_enable_deepep": "deprecated in megatron-core; give moe.moe_token_dispatcher_type=flex with "
        "moe.moe_flex_dispatcher_backend=deepep",
        "sequence_packing_size": "sequences are cut from one stream of documents, each of seq_length tokens, "
        "so nothing is left to pack",
        "persist_layer_norm": "a kernel of Apex's norm; norms here are Transformer Engine's or PyTorch's",
        "train_sync_interval": "every step ends by reading its loss, which waits for the GPU already",
        "mtp_num_layers": "the reference model has no multi-token prediction",
        "multi_latent_attention": "the reference model has grouped-query attention",
        "bf16": _DTYPE,
        "fp16": _DTYPE,
        "calculate_per_token_loss": "every micro-batch has as many tokens, so both averages are the same",
        "position_embedding_type": "positions are rotary: model.rotary_base",
        "optimizer_name": "the optimizer is AdamW",
        "num_layers_per_virtual_pipeline_stage": "give parallel.virtual_pipeline_model_parallel_size = "
        "layers / (PP x this)",
        "ddp_num_buckets": "give overlap.bucket_size = parameters / this",
        "nproc_per_node": _TORCHRUN,
        "nnodes": _TORCHRUN,
        "world_size": _TORCHRUN,
    }
)
"""Canonical id → the reason, with what to give instead where there is something."""


def why_refused(name: str) -> str:
    """Why a knob of the catalogue is no setting here; empty for what the catalogue does not know."""
    knob = catalogue().get(name)
    if knob is not None and knob.type == "command":
        return f"it is done outside a configuration: {knob.command}"
    if knob is not None and knob.topic in ELSEWHERE:
        return f"it is a setting of {', '.join(sorted({DIALECT_TITLES[s.dialect] for s in knob.spellings}))}"
    return REFUSED.get(name, "")


def name_here(name: str) -> str:
    """Canonical id of what a framework, an older version or a guide calls otherwise; empty if nobody does.

    >>> name_here("profile_start_step")
    'profile_step_start'
    """
    leaf = name.rpartition(".")[2]
    if leaf in catalogue() and catalogue()[leaf].topic in ELSEWHERE:
        return leaf
    dialects: tuple[Dialect | None, ...] = (None, "megatron_bridge", "nemo", "verl")
    for dialect in dialects:
        names = names_of(dialect)
        if leaf in names.by_leaf:
            return names.by_leaf[leaf].id
        if leaf in names.former:
            return names.former[leaf][0].id
    flag = names_of("megatron_lm").by_path.get("--" + leaf.removeprefix("--").replace("_", "-"))
    return "" if flag is None else flag[0].id
