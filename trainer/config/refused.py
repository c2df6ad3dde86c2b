"""Knobs of the frameworks that this trainer does not have, and why."""

from collections.abc import Mapping
from types import MappingProxyType

_DECODER = (
    "the reference model is a decoder without an encoder, and megatron-core 0.16.1 has no encoder degrees"
)
_DTYPE = "give precision.params_dtype"
_BACKEND = "megatron-core sets it, and ends where it is set otherwise: give kernels.attention_backend"
_TORCHRUN = "is torchrun's: give it behind `--`, as in `perfdoc run tiny -- --nproc-per-node 8`"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "encoder_pipeline_model_parallel_size": _DECODER,
        "encoder_tensor_model_parallel_size": _DECODER,
        "dataset_seq_length": "samples are as long as the model's sequences: model.seq_length",
        "hybrid_context_parallel": "gives samples of unequal length unequal CP sizes; here all have "
        "seq_length tokens",
        "max_seqlen_per_dp_cp_rank": "is of hybrid context parallelism, for samples of unequal length",
        "ulysses_sequence_parallel_size": "is of verl's FSDP engine; give context_parallel_size with "
        "cp_comm_type=a2a",
        "fsdp_strategy_nemo": "NeMo's selector; give fsdp.use_megatron_fsdp or parallel.use_torch_fsdp2",
        "moe_enable_deepep": "deprecated in megatron-core; give moe.moe_token_dispatcher_type=flex with "
        "moe.moe_flex_dispatcher_backend=deepep",
        "sequence_packing_size": "sequences are cut from one stream of documents, each of seq_length tokens, "
        "so nothing is left to pack",
        "persist_layer_norm": "a kernel of Apex's norm; norms here are Transformer Engine's or PyTorch's",
        "masked_softmax_fusion": "attention is one kernel with the softmax in it, PyTorch's or Transformer "
        "Engine's",
        "torch_nccl_avoid_record_streams": "PyTorch 2.11 and later never record them, whatever is set",
        **dict.fromkeys(("nvte_flash_attn", "nvte_fused_attn", "nvte_unfused_attn"), _BACKEND),
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
