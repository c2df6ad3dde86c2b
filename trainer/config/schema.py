"""Every setting of the trainer, in sections, with its type and range.

A field that is a knob of the catalogue carries the catalogue's canonical id. Names are unique over all
sections, so a setting can be given by its bare name (`tensor_model_parallel_size=2`) or with its section
(`parallel.tensor_model_parallel_size=2`). Rules that tie several settings together are in `layout.py`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from perfdoc.trainer.config.environment import EnvironmentConfig
from perfdoc.trainer.config.profiling import ProfilingConfig

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Meta(gt=0.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0)]


@dataclass(frozen=True, kw_only=True)
class OverlapConfig:
    """Which communication runs beside compute."""

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    bucket_size: Positive | None = None
    """Elements, not bytes; only with overlap_grad_reduce."""
    average_in_collective: bool = False
    reduce_scatter_with_fp32_accumulation: bool = False
    pad_buckets_for_high_nccl_busbw: bool = False
    overlap_p2p_comm: bool = False
    batch_p2p_comm: bool | None = None
    """null: the opposite of overlap_p2p_comm, which excludes it."""
    overlap_p2p_comm_warmup_flush: bool = False
    deallocate_pipeline_outputs: bool | None = None
    """null: on with CUDA. On gloo the memory would go while its send is still under way."""
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: NonNegative = 0
    tp_comm_overlap: bool = False
    tp_comm_bulk_wgrad: bool = True
    tp_comm_bulk_dgrad: bool = True
    tp_comm_overlap_ag: bool = True
    tp_comm_overlap_rs: bool = True
    tp_comm_overlap_rs_dgrad: bool = False
    tp_comm_overlap_cfg: str | None = None
    """A YAML file with method, num_sm, cga_size, num_splits and more by GEMM (`qkv_fprop: {…}`)."""
    tp_overlap_num_sm: Positive | None = None
    """For all GEMMs whose method reads it, as the next three; null: Transformer Engine's own choice."""
    tp_overlap_cga_size: Annotated[int, Meta(ge=1, le=4)] | None = None
    tp_overlap_fp8_buf: bool | None = None
    tp_overlap_num_splits: Positive | None = None
    overlap_moe_expert_parallel_comm: bool = False
    ep_overlap_early_attn_memory_release: bool = False
    delay_wgrad_compute: bool = False
    nccl_ub: bool = False
    disable_symmetric_registration: bool = False
    use_sharp: bool = False
    sharp_enabled_group: Literal["dp", "dp_replica"] | None = None
    high_priority_stream_groups: tuple[str, ...] = ()
    nccl_communicator_config_path: str | None = None


Sharding = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]


@dataclass(frozen=True, kw_only=True)
class FsdpConfig:
    """What is sharded over data-parallel ranks, and how it is moved."""

    use_megatron_fsdp: bool = False
    data_parallel_sharding_strategy: Sharding = "no_shard"
    outer_dp_sharding_strategy: Sharding = "no_shard"
    """Over the replicas, with num_distributed_optimizer_instances above 1."""
    fsdp_double_buffer: bool = False
    suggested_communication_unit_size: Annotated[int, Meta(ge=1)] | None = None
    """Elements, not bytes."""
    gradient_reduce_div_fusion: bool = True
    fsdp_manual_registration: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of the decoder: grouped-query attention, SwiGLU, rotary positions, RMSNorm."""

    num_layers: Positive = 4
    hidden_size: Positive = 128
    ffn_hidden_size: Positive = 352
    num_attention_heads: Positive = 4
    num_query_groups: Positive = 2
    kv_channels: Positive | None = None
    """Width of one head; null: hidden_size / num_attention_heads."""
    seq_length: Positive = 128
    make_vocab_size_divisible_by: Positive = 128
    """The vocabulary is padded to a multiple of this, whatever TP is, so that a checkpoint fits any TP."""
    untie_embeddings_and_output_weights: bool = False
    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    norm_epsilon: PositiveFloat = 1e-5
    swiglu: bool = True
    rotary_base: Positive = 10000
    add_bias_linear: bool = False
    init_method_std: PositiveFloat = 0.02
    hidden_dropout: Probability = 0.0
    attention_dropout: Probability = 0.0


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Mixture of experts; off while num_moe_experts is null."""

    num_moe_experts: Positive | None = None
    moe_router_topk: Positive = 2
    moe_ffn_hidden_size: Positive | None = None
    """Width of one expert; null: ffn_hidden_size."""
    moe_shared_expert_intermediate_size: Positive | None = None
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "alltoall"
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] = "deepep"
    moe_deepep_num_sms: Positive = 20
    moe_hybridep_num_sms: Positive = 16
    moe_router_load_balancing_type: Literal[
        "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"
    ] = "aux_loss"
    moe_aux_loss_coeff: NonNegativeFloat = 0.01
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    moe_grouped_gemm: bool = False
    moe_permute_fusion: bool = False
    moe_router_fusion: bool = False
    moe_shared_expert_overlap: bool = False
    moe_expert_capacity_factor: PositiveFloat | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_router_padding_for_quantization: bool = False


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How ranks divide the model and the data."""

    tensor_model_parallel_size: Positive = 1
    sequence_parallel: bool = False
    pipeline_model_parallel_size: Positive = 1
    virtual_pipeline_model_parallel_size: Annotated[int, Meta(ge=2)] | None = None
    num_layers_in_first_pipeline_stage: Positive | None = None
    num_layers_in_last_pipeline_stage: Positive | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    """Layers by stage, as `Ett|tttL`; virtual stages follow from it."""
    microbatch_group_size_per_vp_stage: Positive | None = None
    context_parallel_size: Positive = 1
    cp_comm_type: Literal["p2p", "all_gather", "a2a", "a2a+p2p"] = "all_gather"
    hierarchical_context_parallel_sizes: tuple[Positive, ...] | None = None
    """Ranks of an all-to-all, then of a ring of those; their product is the CP size."""
    expert_model_parallel_size: Positive = 1
    expert_tensor_parallel_size: Positive = 1
    """megatron-core's own default is the dense TP size; here it is 1 unless asked for."""
    data_parallel_size: Positive | None = None
    """null: what the number of started ranks leaves."""
    use_tp_pp_dp_mapping: bool = False
    """Ranks of a pipeline are neighbours, those of data parallelism apart, instead of the other way round."""
    num_distributed_optimizer_instances: Positive = 1
    use_torch_fsdp2: bool = False
    distributed_timeout_minutes: Positive = 10


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with a linear warm-up and a cosine (or other) decay."""

    use_distributed_optimizer: bool = True
    lr: PositiveFloat = 3e-3
    min_lr: NonNegativeFloat = 3e-4
    lr_warmup_iters: NonNegative = 10
    lr_decay_iters: Positive | None = None
    """null: train_iters."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "cosine"
    weight_decay: NonNegativeFloat = 0.1
    adam_beta1: Probability = 0.9
    adam_beta2: Probability = 0.95
    adam_eps: PositiveFloat = 1e-8
    clip_grad: NonNegativeFloat = 1.0
    use_precision_aware_optimizer: bool = False
    exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"] = "fp32"
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: Fraction = 0.0
    overlap_cpu_optimizer_d2h_h2d: bool = False


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Number formats of weights, activations and gradients."""

    params_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    grad_reduce_in_fp32: bool = True
    check_for_nan_in_grad: bool = True
    initial_loss_scale: PositiveFloat = 65536.0
    """fp16 only. megatron-core's own default, 2^32, skips the first steps of a small model."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    fp8_recipe: Literal["tensorwise", "delayed", "mxfp8", "blockwise"] = "delayed"
    fp8_param_gather: bool = False
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    fp8_dot_product_attention: bool = False
    fp4: Literal["e2m1"] | None = None
    first_last_layers_bf16: bool = False


@dataclass(frozen=True, kw_only=True)
class RecomputeConfig:
    """Which activations are computed again in the backward pass instead of kept."""

    recompute_granularity: Literal["full", "selective"] | None = None
    recompute_method: Literal["uniform", "block"] | None = None
    recompute_num_layers: Positive | None = None
    recompute_modules: tuple[str, ...] = ()
    distribute_saved_activations: bool = False
    cpu_offloading: bool = False
    cpu_offloading_num_layers: NonNegative = 0
    cpu_offloading_activations: bool = True
    cpu_offloading_weights: bool = False
    cpu_offloading_double_buffering: bool = False
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelsConfig:
    """Which implementation computes what. Fusions need CUDA; a CPU run must leave them off."""

    transformer_impl: Literal["auto", "local", "transformer_engine"] = "auto"
    """auto: Transformer Engine's layers where CUDA and the package are there, else own layers."""
    attention_backend: Literal["flash", "fused", "unfused", "local", "auto"] = "auto"
    gradient_accumulation_fusion: bool = False
    bias_activation_fusion: bool = False
    bias_dropout_fusion: bool = False
    apply_rope_fusion: bool = False
    fused_single_qkv_rope: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: Literal["native", "te"] = "native"
    cuda_graph_impl: Literal["none", "local", "transformer_engine"] = "none"
    cuda_graph_scope: tuple[str, ...] = ()
    use_te_rng_tracker: bool = False


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where tokens come from."""

    text: str = "builtin"
    """A UTF-8 text file, or `builtin` for the text that ships; documents are separated by blank lines."""
    tokenizer: str = "byte"
    """`byte`, or the path of a Hugging Face tokenizer.json (needs the tokenizers package)."""
    data_path: tuple[str, ...] = ()
    """Prefixes of existing megatron-core indexed data sets; they replace `text`."""
    data_cache: str = "perfdoc-data"
    """Folder for the indexed data set and megatron-core's sample indices, built on first use."""
    split: Annotated[str, Meta(pattern=r"^\d+(\.\d+)?(,\d+(\.\d+)?){0,2}$")] = "90,10,0"
    dataloader_num_workers: NonNegative = 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The loop."""

    train_iters: Positive = 100
    micro_batch_size: Positive = 2
    global_batch_size: Positive = 16
    seed: NonNegative = 1234
    eval_interval: Positive | None = 50
    eval_iters: Positive = 2
    log_interval: Positive = 10
    manual_gc: bool = True
    manual_gc_interval: NonNegative = 100
    manual_gc_eval: bool = True
    """With manual_gc: collect before and after each validation."""
    manual_gc_interval_val: NonNegative = 0
    """With manual_gc: collect after every so many validation batches too; 0: not between them."""
    empty_unused_memory_level: Literal[0, 1, 2] = 0
    """1: the allocator gives unused memory back before the optimizer's step; 2: after it too."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Saving and resuming."""

    save: str | None = None
    """Folder for checkpoints; null: none is written."""
    save_interval: Positive | None = None
    """Steps; null: only at the end and on a stop signal."""
    keep_checkpoints: Positive = 2
    load: str | None = None
    """Folder to resume from."""
    load_step: Positive | None = None
    """Which of its checkpoints; null: the last complete one."""
    load_weights_only: bool = False
    """Take the model's weights and start at step 0 with a fresh optimizer."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    moe: MoeConfig = field(default_factory=MoeConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    overlap: OverlapConfig = field(default_factory=OverlapConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    kernels: KernelsConfig = field(default_factory=KernelsConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    profiling: ProfilingConfig = field(default_factory=ProfilingConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
