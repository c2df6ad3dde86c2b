"""The model: megatron-core's GPTModel, one chunk per virtual pipeline stage, wrapped for data parallelism."""

from __future__ import annotations

from typing import Any

import torch

from perfdoc.trainer.adapt import cuda_available
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout
from perfdoc.trainer.megatron_config import ddp_config, transformer_config, uses_transformer_engine


def build_model(config: Config, layout: Layout, padded_vocab: int) -> list[Any]:
    """This rank's chunks, in the order of their virtual stages, on this rank's device."""
    settings = transformer_config(config, layout)
    chunks = [
        _build_chunk(config, layout, settings, padded_vocab, stage if layout.vpp > 1 else None)
        for stage in range(layout.vpp)
    ]
    if cuda_available():
        chunks = [chunk.cuda(torch.cuda.current_device()) for chunk in chunks]
    if settings.bf16 or settings.fp16:
        from megatron.core.transformer.module import Float16Module

        chunks = [Float16Module(settings, chunk) for chunk in chunks]
    return _wrap(config, settings, chunks)


def unwrapped(chunk: Any) -> Any:
    """The GPTModel inside its wrappers."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _build_chunk(config: Config, layout: Layout, settings: Any, padded_vocab: int, stage: int | None) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.parallel_state import is_pipeline_first_stage, is_pipeline_last_stage

    model = GPTModel(
        config=settings,
        transformer_layer_spec=_layer_spec(config, settings, stage),
        vocab_size=padded_vocab,
        max_sequence_length=config.model.seq_length,
        pre_process=is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=not config.model.untie_embeddings_and_output_weights,
        position_embedding_type="rope",
        rotary_base=config.model.rotary_base,
        vp_stage=stage,
    )
    del layout
    return model


def _layer_spec(config: Config, settings: Any, stage: int | None) -> Any:
    """Transformer Engine's layers, or megatron-core's own with our norm and attention in place of theirs."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    if uses_transformer_engine(config):
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=config.moe.num_moe_experts, moe_grouped_gemm=config.moe.moe_grouped_gemm
        )
    from perfdoc.trainer.adapt.attention import CoreAttention
    from perfdoc.trainer.adapt.norm import Norm

    layer = get_gpt_layer_local_spec(
        num_experts=config.moe.num_moe_experts,
        moe_grouped_gemm=config.moe.moe_grouped_gemm,
        normalization=config.model.normalization,
    )
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = CoreAttention
    count = get_num_layers_to_build(settings, vp_stage=stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=Norm)


def _wrap(config: Config, settings: Any, chunks: list[Any]) -> list[Any]:
    if config.parallel.use_torch_fsdp2:
        from perfdoc.trainer.adapt.fsdp import fully_sharded

        return [fully_sharded(settings, ddp_config(config), chunk) for chunk in chunks]
    from megatron.core.distributed import DistributedDataParallel

    wrapped = [
        DistributedDataParallel(
            config=settings,
            ddp_config=ddp_config(config),
            module=chunk,
            # Later chunks finish their backward pass together; splitting them buys nothing.
            disable_bucketing=index > 0,
        )
        for index, chunk in enumerate(chunks)
    ]
    for chunk in wrapped:
        chunk.broadcast_params()
    return wrapped
