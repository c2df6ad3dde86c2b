"""What is trained: megatron-core's GPTModel, wrapped for data parallelism, AdamW, and their configuration.

Call sites: distributed/finalize_model_grads.py calls `finish_grad_sync(force_all_reduce=...)`, an argument
that the wrapper does not take (megatron-core 0.16.1: TypeError in the first step, on any device); and
distributed/torch_fully_sharded_data_parallel.py asks for a mesh of CUDA devices by name.
"""

from __future__ import annotations

import warnings
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import DeviceMesh

from perfdoc.trainer.adapt import cuda_available, transformer_engine_available
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.layout import Layout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}


def _same_names(theirs: type, config: Config) -> dict[str, Any]:
    """The settings that one of megatron-core's dataclasses has under the same name."""
    names = [entry.name for entry in fields(theirs) if entry.name in KEYS]
    values = {name: getattr(getattr(config, KEYS[name]), name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def uses_transformer_engine(config: Config) -> bool:
    """Whether this run's layers are Transformer Engine's."""
    return config.kernels.transformer_impl != "local" and transformer_engine_available()


def attends_in_bf16(config: Config) -> bool:
    """Whether own attention (`adapt.layers.CoreAttention`) leaves fp32, in which CUDA has no fused kernel for
    grouped queries."""
    return (
        cuda_available()
        and not uses_transformer_engine(config)
        and config.precision.params_dtype == "fp32"
        and config.parallel.context_parallel_size == 1
        and config.model.num_query_groups < config.model.num_attention_heads
    )


def transformer_config(config: Config, layout: Layout) -> Any:
    """megatron-core's TransformerConfig of this run."""
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig

    values = _same_names(TransformerConfig, config)
    with_engine = uses_transformer_engine(config)
    dtype = DTYPES[config.precision.params_dtype]
    batch_p2p = config.overlap.batch_p2p_comm
    deallocate = config.overlap.deallocate_pipeline_outputs
    values.update(
        layernorm_epsilon=config.model.norm_epsilon,
        gated_linear_unit=config.model.swiglu,
        activation_func=torch.nn.functional.silu if config.model.swiglu else torch.nn.functional.gelu,
        params_dtype=dtype,
        pipeline_dtype=dtype if layout.pp > 1 else None,
        bf16=config.precision.params_dtype == "bf16",
        fp16=config.precision.params_dtype == "fp16",
        batch_p2p_comm=not config.overlap.overlap_p2p_comm if batch_p2p is None else batch_p2p,
        deallocate_pipeline_outputs=cuda_available() if deallocate is None else deallocate,
        attention_backend=AttnBackend[config.kernels.attention_backend],
        transformer_impl="transformer_engine" if with_engine else "local",
        use_cpu_initialization=not cuda_available(),
        fp8_param=config.precision.fp8_param_gather,
        recompute_modules=values["recompute_modules"] or None,
        persist_layer_norm=with_engine,
    )
    moe = config.moe
    if moe.num_moe_experts is None:
        values = {name: value for name, value in values.items() if KEYS.get(name) != "moe"}
    else:
        values["moe_ffn_hidden_size"] = moe.moe_ffn_hidden_size or config.model.ffn_hidden_size
        # Of one score the softmax is 1, whatever the router says: it goes over all experts then.
        values["moe_router_pre_softmax"] = moe.moe_router_topk == 1
        if moe.moe_router_load_balancing_type in ("none", "sinkhorn"):
            values["moe_aux_loss_coeff"] = 0.0
    return TransformerConfig(**values)


def ddp_config(config: Config) -> Any:
    """megatron-core's DistributedDataParallelConfig of this run."""
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(**_same_names(DistributedDataParallelConfig, config))


def optimizer_config(config: Config) -> Any:
    """megatron-core's OptimizerConfig of this run."""
    from megatron.core.optimizer import OptimizerConfig

    dtype = config.precision.params_dtype
    values = _same_names(OptimizerConfig, config)
    values.update({name: DTYPES[value] for name, value in values.items() if name.endswith("_dtype")})
    values.update(
        optimizer="adam",
        bf16=dtype == "bf16",
        fp16=dtype == "fp16",
        fp8_recipe=config.precision.fp8_recipe if config.precision.fp8 else None,
    )
    return OptimizerConfig(**values)


def fully_sharded(settings: Any, ddp: Any, chunk: Any) -> Any:
    """A model chunk sharded over its data-parallel ranks, context parallelism included."""
    from megatron.core.distributed import torch_fully_sharded_data_parallel as theirs

    if not cuda_available():  # it asks for a mesh of CUDA devices
        theirs.DeviceMesh = SimpleNamespace(from_group=lambda group, _: DeviceMesh.from_group(group, "cpu"))

    class FullySharded(theirs.TorchFullyShardedDataParallel):  # type: ignore[misc]
        def finish_grad_sync(self, force_all_reduce: bool = False) -> None:
            """Nothing is left to do: FSDP2 reduces a layer's gradients in the backward pass."""

    return FullySharded(settings, ddp, chunk)


def megatron_sharded(settings: Any, ddp: Any, chunk: Any, *, bucketing: bool) -> Any:
    """A model chunk under Megatron FSDP: its layers are what is gathered and given back."""
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return FullyShardedDataParallel(
        config=settings, ddp_config=ddp, module=chunk, disable_bucketing=not bucketing
    )


def build_model(config: Config, layout: Layout, padded_vocab: int) -> list[Any]:
    """This rank's chunks, in the order of their virtual stages, on this rank's device."""
    settings = transformer_config(config, layout)
    chunks = [
        _build_chunk(config, settings, padded_vocab, stage if layout.vpp > 1 else None)
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


def _build_chunk(config: Config, settings: Any, padded_vocab: int, stage: int | None) -> Any:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.parallel_state import is_pipeline_first_stage, is_pipeline_last_stage

    return GPTModel(
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
    from perfdoc.trainer.adapt.layers import CoreAttention, Norm

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
    """The chunks under data parallelism, wrapped on a stream of their own.

    Gradient accumulators work on the stream on which they were made, and while a graph of the full iteration
    is captured nothing may run on the default one. Megatron-LM does the same.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wrapped = _wrapped(config, settings, chunks)
    torch.cuda.current_stream().wait_stream(stream)
    if not (config.parallel.use_torch_fsdp2 or config.fsdp.use_megatron_fsdp):
        for chunk in wrapped:
            chunk.broadcast_params()
    return wrapped


def _wrapped(config: Config, settings: Any, chunks: list[Any]) -> list[Any]:
    if config.parallel.use_torch_fsdp2:
        return [fully_sharded(settings, ddp_config(config), chunk) for chunk in chunks]
    if config.fsdp.use_megatron_fsdp:
        return [
            megatron_sharded(settings, ddp_config(config), chunk, bucketing=index == 0)
            for index, chunk in enumerate(chunks)
        ]
    from megatron.core.distributed import DistributedDataParallel

    return [
        DistributedDataParallel(
            config=settings,
            ddp_config=ddp_config(config),
            module=chunk,
            # Later chunks finish their backward pass together; splitting them buys nothing. The first one's
            # parameters are gathered at once where that begins in the optimizer's step.
            disable_bucketing=index > 0 or config.overlap.overlap_param_gather_with_optimizer_step,
        )
        for index, chunk in enumerate(chunks)
    ]


def build_optimizer(config: Config, model: list[Any]) -> Any:
    """The optimizer over this rank's chunks, the experts' parameters chained to the dense ones."""
    from megatron.core.optimizer import get_megatron_optimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_megatron_optimizer(optimizer_config(config), model)


def build_lr_schedule(config: Config, optimizer: Any) -> Any:
    """Linear warm-up from 0, then the decay down to min_lr. Counted in samples, as megatron-core does."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    settings, training = config.optimizer, config.training
    batch = training.global_batch_size
    decay_iters = settings.lr_decay_iters or training.train_iters
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_iters * batch,
        lr_decay_steps=decay_iters * batch,
        lr_decay_style=settings.lr_decay_style,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=training.train_iters * batch,
        wd_incr_style="constant",
    )
