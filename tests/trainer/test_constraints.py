"""What a run is refused for before a process starts: constraints of the catalogue, and the trainer's own."""

from __future__ import annotations

import pytest

from perfdoc.knobs.constraints import constraints
from perfdoc.trainer.config import resolve
from perfdoc.trainer.constraints import RULES
from perfdoc.trainer.constraints.catalogue import WITHOUT_EFFECT, catalogue_problems
from perfdoc.trainer.layout import Device, plan
from tests.trainer import broken_guides
from tests.trainer.overrides import EXPERTS, FSDP2, PLAIN, PP2, TP2, VPP2

EP_OVERLAP = [
    *EXPERTS,
    "expert_model_parallel_size=2",
    "overlap_moe_expert_parallel_comm=true",
    "params_dtype=bf16",
]

BROKEN: list[tuple[str, list[str], int, Device]] = [
    ("parallel.tensor_model_parallel_size = 2: 3 ranks cannot be divided", TP2, 3, "cpu"),
    ("parallel.data_parallel_size = 2: 4 ranks", ["data_parallel_size=2"], 4, "cpu"),
    (
        "training.global_batch_size = 8: not a multiple of micro_batch_size x DP",
        ["micro_batch_size=3"],
        1,
        "cpu",
    ),
    (
        "parallel.expert_model_parallel_size = 4: 2 ranks",
        [*EXPERTS, "expert_model_parallel_size=4"],
        2,
        "cpu",
    ),
    ("model.num_attention_heads = 6: hidden_size", ["num_attention_heads=6", "num_query_groups=6"], 1, "cpu"),
    (
        "parallel.tensor_model_parallel_size = 2: num_attention_heads must be divisible by",
        [*TP2, "num_attention_heads=5", "num_query_groups=5", "kv_channels=16"],
        2,
        "cpu",
    ),
    ("model.num_query_groups = 3: does not divide", ["num_query_groups=3"], 1, "cpu"),
    (
        "parallel.tensor_model_parallel_size = 2: num_query_groups must be a multiple or a divisor",
        [*TP2, "num_query_groups=3", "num_attention_heads=6", "hidden_size=96"],
        2,
        "cpu",
    ),
    ("model.ffn_hidden_size = 351: not divisible by tensor", [*TP2, "ffn_hidden_size=351"], 2, "cpu"),
    ("model.make_vocab_size_divisible_by = 1: ", [*TP2, "make_vocab_size_divisible_by=1"], 2, "cpu"),
    (
        "parallel.context_parallel_size = 2: seq_length must be divisible by 2 x",
        ["context_parallel_size=2", "seq_length=126"],
        2,
        "cpu",
    ),
    ("model.seq_length = 127: ", [*TP2, "sequence_parallel=true", "seq_length=127"], 2, "cpu"),
    (
        "parallel.sequence_parallel = true: sequence_parallel needs",
        ["sequence_parallel=true"],
        1,
        "cpu",
    ),
    ("parallel.sequence_parallel = false: a mixture of experts", [*TP2, *EXPERTS], 2, "cpu"),
    (
        "parallel.virtual_pipeline_model_parallel_size = 2: virtual stages need",
        VPP2[:1],
        1,
        "cpu",
    ),
    ("parallel.pipeline_model_parallel_size = 2: num_layers", [*PP2, "num_layers=5"], 2, "cpu"),
    ("parallel.pipeline_model_parallel_size = 2: num_layers", [*PP2, *VPP2, "num_layers=6"], 2, "cpu"),
    (
        "parallel.num_layers_in_first_pipeline_stage = 1: the layers that the first and last stage leave",
        ["num_layers_in_first_pipeline_stage=1"],
        1,
        "cpu",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage = 2: the layers that the first and last stage leave",
        ["pipeline_model_parallel_size=4", "num_layers_in_first_pipeline_stage=2", "num_layers=10"],
        4,
        "cpu",
    ),
    (
        "training.global_batch_size = 9: the interleaved schedule",
        [*PP2, *VPP2, "global_batch_size=9"],
        2,
        "cpu",
    ),
    (
        "overlap.overlap_p2p_comm = true: overlap_p2p_comm works between virtual stages",
        [*PP2, "overlap_p2p_comm=true"],
        2,
        "cpu",
    ),
    (
        "parallel.virtual_pipeline_model_parallel_size = 2: two interleaved stages need overlap_p2p_comm",
        [*PP2, VPP2[0]],
        2,
        "cpu",
    ),
    (
        "parallel.virtual_pipeline_model_parallel_size = 2: two interleaved stages need overlap_p2p_comm",
        [*PP2, VPP2[0]],
        2,
        "cuda",
    ),
    (
        "overlap.batch_p2p_comm = true: overlap_p2p_comm and batch_p2p_comm exclude each other",
        [*PP2, *VPP2, "batch_p2p_comm=true"],
        2,
        "cpu",
    ),
    (
        "overlap.deallocate_pipeline_outputs = true: on gloo",
        [*PP2, *VPP2, "deallocate_pipeline_outputs=true"],
        2,
        "cpu",
    ),
    ("parallel.cp_comm_type = p2p: without", ["context_parallel_size=2", "cp_comm_type=p2p"], 2, "cpu"),
    (
        "parallel.use_torch_fsdp2 = true: use_torch_fsdp2 works with PP 1 and EP 1 only",
        [*FSDP2, *PP2],
        2,
        "cpu",
    ),
    (
        "parallel.use_torch_fsdp2 = true: use_torch_fsdp2 shards the optimizer itself and",
        [*FSDP2, "use_distributed_optimizer=true"],
        1,
        "cuda",
    ),
    ("parallel.use_torch_fsdp2 = true: overlaps", [*FSDP2, "overlap_grad_reduce=true"], 2, "cpu"),
    (
        "parallel.use_torch_fsdp2 = true: shards the embedding",
        [*FSDP2, "untie_embeddings_and_output_weights=false"],
        1,
        "cpu",
    ),
    (
        "parallel.use_torch_fsdp2 = true: use_torch_fsdp2 does not train in fp16",
        [*FSDP2, "params_dtype=fp16"],
        1,
        "cuda",
    ),
    (
        "precision.grad_reduce_in_fp32 = true: FSDP2 reduces the gradients of bf16",
        [*FSDP2, "params_dtype=bf16"],
        2,
        "cuda",
    ),
    ("checkpoint.save = x: checkpoints of FSDP2", [*FSDP2, "save=x"], 1, "cpu"),
    (
        "environment.cuda_device_max_connections = 1: FSDP's all-gathers overlap with compute",
        [*FSDP2, "cuda_device_max_connections=1"],
        1,
        "cuda",
    ),
    (
        "parallel.expert_model_parallel_size = 2: expert_model_parallel_size above 1 needs a model",
        ["expert_model_parallel_size=2"],
        2,
        "cpu",
    ),
    (
        "parallel.expert_model_parallel_size = 2: num_moe_experts must be divisible by",
        ["num_moe_experts=3", "expert_model_parallel_size=2"],
        2,
        "cpu",
    ),
    ("moe.moe_router_topk = 2: more than", ["num_moe_experts=1"], 1, "cpu"),
    (
        "parallel.expert_tensor_parallel_size = 2: above 1 with EP fails on gloo",
        [
            *TP2,
            *EXPERTS,
            "sequence_parallel=true",
            "expert_tensor_parallel_size=2",
            "expert_model_parallel_size=2",
        ],
        4,
        "cpu",
    ),
    (
        "parallel.expert_tensor_parallel_size = 1: with EP 1 it must equal",
        [*TP2, *EXPERTS, "sequence_parallel=true"],
        2,
        "cuda",
    ),
    ("moe.moe_token_dispatcher_type = flex: ", [*EXPERTS, "moe_token_dispatcher_type=flex"], 1, "cpu"),
    (
        "overlap.overlap_param_gather = true: overlap_param_gather needs overlap_grad_reduce",
        ["overlap_param_gather=true"],
        2,
        "cpu",
    ),
    ("overlap.bucket_size = 9: bucket_size is ignored without", ["bucket_size=9"], 2, "cpu"),
    (
        "overlap.tp_comm_overlap = true: needs",
        [*TP2, "sequence_parallel=true", "tp_comm_overlap=true"],
        2,
        "cpu",
    ),
    (
        "recompute.recompute_granularity = full: recompute_granularity full needs recompute_method",
        ["recompute_granularity=full"],
        1,
        "cpu",
    ),
    ("precision.fp8 = hybrid: needs CUDA", ["fp8=hybrid"], 1, "cpu"),
    (
        "kernels.cuda_graph_impl = local: CUDA graphs need the random state of Transformer",
        ["cuda_graph_impl=local"],
        1,
        "cpu",
    ),
    ("kernels.apply_rope_fusion = true: needs CUDA", ["apply_rope_fusion=true"], 1, "cpu"),
    ("moe.moe_grouped_gemm = true: needs CUDA", ["moe_grouped_gemm=true"], 1, "cpu"),
    ("optimizer.min_lr = 1.0: above lr", ["min_lr=1"], 1, "cpu"),
    ("data.split = 1,0: gives validation nothing", ["split='1,0'"], 1, "cpu"),
    ("checkpoint.save_interval = 5: needs", ["save_interval=5"], 1, "cpu"),
    (
        "parallel.num_layers_in_first_pipeline_stage = 1: a size for the first or last stage excludes",
        [*PP2, "num_layers_in_first_pipeline_stage=1", "account_for_loss_in_pipeline_split=true"],
        2,
        "cpu",
    ),
    (
        "parallel.microbatch_group_size_per_vp_stage = 2: microbatch_group_size_per_vp_stage is read with",
        ["microbatch_group_size_per_vp_stage=2"],
        1,
        "cpu",
    ),
    (
        "parallel.microbatch_group_size_per_vp_stage = 2: less than pipeline_model_parallel_size",
        [
            "pipeline_model_parallel_size=4",
            "num_layers=8",
            "virtual_pipeline_model_parallel_size=2",
            "overlap_p2p_comm=true",
            "microbatch_group_size_per_vp_stage=2",
        ],
        4,
        "cuda",
    ),
    (
        "training.global_batch_size = 9: the interleaved schedule needs micro-batches per step",
        [
            *PP2,
            "virtual_pipeline_model_parallel_size=2",
            "overlap_p2p_comm=true",
            "microbatch_group_size_per_vp_stage=2",
            "global_batch_size=9",
        ],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_p2p_comm_warmup_flush = true: overlap_p2p_comm_warmup_flush needs",
        ["overlap_p2p_comm_warmup_flush=true"],
        1,
        "cpu",
    ),
    (
        "parallel.num_distributed_optimizer_instances = 2: DP x CP must be divisible by",
        ["num_distributed_optimizer_instances=2"],
        1,
        "cpu",
    ),
    (
        "parallel.num_distributed_optimizer_instances = 2: does not divide the experts' DP",
        [
            *TP2,
            "sequence_parallel=true",
            *EXPERTS,
            "expert_model_parallel_size=4",
            "num_distributed_optimizer_instances=2",
        ],
        4,
        "cuda",
    ),
    (
        "parallel.num_distributed_optimizer_instances = 2: num_distributed_optimizer_instances divides the",
        ["num_distributed_optimizer_instances=2", "use_distributed_optimizer=false"],
        2,
        "cpu",
    ),
    (
        "parallel.cp_comm_type = a2a: cp_comm_type a2a hands whole heads around, so the",
        ["context_parallel_size=4", *TP2, "cp_comm_type=a2a"],
        8,
        "cuda",
    ),
    (
        "parallel.expert_tensor_parallel_size = 2: needs num_moe_experts",
        ["expert_tensor_parallel_size=2"],
        2,
        "cpu",
    ),
    (
        "parallel.expert_tensor_parallel_size = 2: experts with a bias need expert_tensor_parallel_size 1",
        [*TP2, "sequence_parallel=true", *EXPERTS, "expert_tensor_parallel_size=2", "add_bias_linear=true"],
        2,
        "cuda",
    ),
    (
        "moe.moe_pad_expert_input_to_capacity = true: moe_pad_expert_input_to_capacity needs",
        [*EXPERTS, "moe_pad_expert_input_to_capacity=true"],
        1,
        "cpu",
    ),
    (
        "moe.moe_shared_expert_overlap = true: moe_shared_expert_overlap needs shared experts",
        [*EXPERTS, "moe_shared_expert_overlap=true"],
        1,
        "cpu",
    ),
    (
        "moe.moe_shared_expert_overlap = true: moe_shared_expert_overlap works with the alltoall",
        [
            *EXPERTS,
            "moe_shared_expert_overlap=true",
            "moe_shared_expert_intermediate_size=64",
            "moe_token_dispatcher_type=allgather",
        ],
        1,
        "cpu",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm needs",
        [*EP_OVERLAP, "expert_model_parallel_size=1"],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm needs the",
        [*EP_OVERLAP, "moe_token_dispatcher_type=allgather"],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm needs bf16 or",
        [*EP_OVERLAP, "params_dtype=fp32"],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm with PP above 1",
        [*EP_OVERLAP, *PP2],
        4,
        "cuda",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm excludes full",
        [*EP_OVERLAP, "recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"],
        2,
        "cuda",
    ),
    (
        "overlap.overlap_moe_expert_parallel_comm = true: overlap_moe_expert_parallel_comm excludes",
        [*EP_OVERLAP, "moe_shared_expert_overlap=true", "moe_shared_expert_intermediate_size=64"],
        2,
        "cuda",
    ),
    ("overlap.delay_wgrad_compute = true: delay_wgrad_compute needs", ["delay_wgrad_compute=true"], 1, "cpu"),
    (
        "overlap.align_param_gather = true: align_param_gather takes effect with",
        ["align_param_gather=true"],
        1,
        "cpu",
    ),
    (
        "overlap.overlap_param_gather = true: overlap_param_gather gathers what the distributed",
        ["overlap_param_gather=true", "overlap_grad_reduce=true", "use_distributed_optimizer=false"],
        1,
        "cpu",
    ),
    (
        "overlap.defer_embedding_wgrad_compute = true: defer_embedding_wgrad_compute needs PP above 1",
        ["defer_embedding_wgrad_compute=true"],
        1,
        "cpu",
    ),
    (
        "overlap.defer_embedding_wgrad_compute = true: defer_embedding_wgrad_compute needs PP above 1",
        [*PP2, "defer_embedding_wgrad_compute=true"],
        2,
        "cuda",
    ),
    (
        "overlap.wgrad_deferral_limit = 3: wgrad_deferral_limit is read with",
        ["wgrad_deferral_limit=3"],
        1,
        "cpu",
    ),
    ("overlap.nccl_ub = true: needs CUDA", ["nccl_ub=true"], 1, "cpu"),
    (
        "overlap.nccl_ub = true: nccl_ub registers buffers of a memory pool, which",
        ["nccl_ub=true", "pytorch_cuda_alloc_conf='expandable_segments:True'"],
        1,
        "cuda",
    ),
    (
        "overlap.use_sharp = true: needs CUDA and an InfiniBand fabric with SHARP",
        ["use_sharp=true"],
        1,
        "cpu",
    ),
    (
        "overlap.tp_comm_overlap = true: tp_comm_overlap needs tensor_model_parallel_size",
        [*TP2, "tp_comm_overlap=true"],
        2,
        "cuda",
    ),
    (
        "recompute.recompute_method = uniform: recompute_method belongs to full recomputation;",
        ["recompute_granularity=selective", "recompute_method=uniform"],
        1,
        "cpu",
    ),
    (
        "recompute.recompute_num_layers = 1: selective recomputation takes recompute_modules,",
        ["recompute_granularity=selective", "recompute_num_layers=1"],
        1,
        "cpu",
    ),
    (
        "recompute.recompute_num_layers = 9: more than the layers of a stage",
        ["recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=9"],
        1,
        "cpu",
    ),
    (
        "recompute.recompute_num_layers = 9: more than the layers of a stage",
        ["recompute_granularity=full", "recompute_method=block", "recompute_num_layers=9"],
        1,
        "cpu",
    ),
    (
        "recompute.distribute_saved_activations = true: needs full recompute and TP above 1",
        ["distribute_saved_activations=true"],
        1,
        "cpu",
    ),
    (
        "recompute.distribute_saved_activations = true: distribute_saved_activations excludes",
        [
            *TP2,
            "sequence_parallel=true",
            "distribute_saved_activations=true",
            "recompute_granularity=full",
            "recompute_method=uniform",
            "recompute_num_layers=1",
        ],
        2,
        "cpu",
    ),
    ("recompute.cpu_offloading = true: needs CUDA", ["cpu_offloading=true"], 1, "cpu"),
    (
        "recompute.cpu_offloading = true: cpu_offloading works with PP 1 only",
        ["cpu_offloading=true", *PP2],
        2,
        "cuda",
    ),
    (
        "recompute.cpu_offloading = true: cpu_offloading excludes recomputation",
        ["cpu_offloading=true", "recompute_granularity=selective"],
        1,
        "cuda",
    ),
    (
        "recompute.cpu_offloading = true: cpu_offloading excludes CUDA graphs",
        ["cpu_offloading=true", "cuda_graph_impl=local", "use_te_rng_tracker=true"],
        1,
        "cuda",
    ),
    (
        "recompute.cpu_offloading_num_layers = 4: cpu_offloading_num_layers must be below num_layers",
        ["cpu_offloading=true", "cpu_offloading_num_layers=4"],
        1,
        "cuda",
    ),
    (
        "optimizer.use_precision_aware_optimizer = true: needs CUDA and Transformer Engine",
        ["use_precision_aware_optimizer=true"],
        1,
        "cpu",
    ),
    (
        "optimizer.use_precision_aware_optimizer = true: use_precision_aware_optimizer needs",
        ["use_precision_aware_optimizer=true", "use_distributed_optimizer=false"],
        1,
        "cuda",
    ),
    ("optimizer.exp_avg_dtype = bf16: exp_avg_dtype stays fp32 without", ["exp_avg_dtype=bf16"], 1, "cuda"),
    (
        "optimizer.exp_avg_sq_dtype = fp8: exp_avg_sq_dtype stays fp32 without",
        ["exp_avg_sq_dtype=fp8"],
        1,
        "cuda",
    ),
    (
        "optimizer.main_grads_dtype = bf16: main_grads_dtype stays fp32 without",
        ["main_grads_dtype=bf16"],
        1,
        "cuda",
    ),
    (
        "optimizer.main_params_dtype = fp16: main_params_dtype stays fp32 without",
        ["main_params_dtype=fp16"],
        1,
        "cuda",
    ),
    (
        "optimizer.optimizer_cpu_offload = true: optimizer_cpu_offload needs",
        ["optimizer_cpu_offload=true", "optimizer_offload_fraction=0.5"],
        1,
        "cuda",
    ),
    (
        "optimizer.use_precision_aware_optimizer = true: needs CUDA and Transformer Engine",
        [
            "optimizer_cpu_offload=true",
            "optimizer_offload_fraction=0.5",
            "use_precision_aware_optimizer=true",
        ],
        1,
        "cpu",
    ),
    ("precision.fp8 = hybrid: needs CUDA, Transformer Engine and params_dtype", ["fp8=hybrid"], 1, "cuda"),
    (
        "precision.fp8_param_gather = true: fp8_param_gather keeps parameters in FP8, which",
        ["fp8_param_gather=true"],
        1,
        "cuda",
    ),
    (
        "precision.fp8_param_gather = true: fp8_param_gather needs the distributed optimizer",
        ["fp8_param_gather=true", "fp8=hybrid", "params_dtype=bf16", "use_distributed_optimizer=false"],
        1,
        "cuda",
    ),
    (
        "precision.fp8_param_gather = true: needs use_distributed_optimizer, which FSDP2 excludes",
        [*FSDP2, "params_dtype=bf16", "grad_reduce_in_fp32=false", "fp8=hybrid", "fp8_param_gather=true"],
        1,
        "cuda",
    ),
    (
        "precision.first_last_layers_bf16 = true: needs fp8 with a recipe other than delayed",
        ["first_last_layers_bf16=true"],
        1,
        "cuda",
    ),
    (
        "precision.first_last_layers_bf16 = true: first_last_layers_bf16 does not work with delayed",
        ["first_last_layers_bf16=true", "fp8=hybrid", "params_dtype=bf16"],
        1,
        "cuda",
    ),
    (
        "kernels.transformer_impl = transformer_engine: Transformer Engine does not run without a GPU",
        ["transformer_impl=transformer_engine"],
        1,
        "cpu",
    ),
    (
        "kernels.cuda_graph_impl = local: CUDA graphs need the random state of Transformer",
        ["cuda_graph_impl=local"],
        1,
        "cuda",
    ),
    (
        "kernels.cuda_graph_impl = local: needs CUDA",
        ["cuda_graph_impl=local", "use_te_rng_tracker=true"],
        1,
        "cpu",
    ),
    (
        'kernels.cuda_graph_scope = ["full_iteration"]: cuda_graph_scope is read with cuda_graph_impl only',
        ["cuda_graph_scope=[full_iteration]"],
        1,
        "cuda",
    ),
    (
        'kernels.cuda_graph_scope = ["full_iteration"]: the scope full_iteration needs cuda_graph_impl local',
        [
            "cuda_graph_scope=[full_iteration]",
            "cuda_graph_impl=transformer_engine",
            "use_te_rng_tracker=true",
            "check_for_nan_in_grad=false",
        ],
        1,
        "cuda",
    ),
    (
        "precision.check_for_nan_in_grad = true: a graph of the full iteration excludes",
        ["cuda_graph_scope=[full_iteration]", "cuda_graph_impl=local", "use_te_rng_tracker=true"],
        1,
        "cuda",
    ),
    ("optimizer.lr_warmup_iters = 300: not below lr_decay_iters", ["lr_warmup_iters=300"], 1, "cpu"),
    ("data.split = 0,1: gives training nothing", ["split='0,1'"], 1, "cpu"),
    ("checkpoint.load_step = 5: needs checkpoint.load", ["load_step=5"], 1, "cpu"),
    (
        "environment.cuda_device_max_connections = 1: must be above 1 with overlap_moe_expert_parallel_comm",
        [*EP_OVERLAP, "cuda_device_max_connections=1"],
        2,
        "cuda",
    ),
    (
        "parallel.use_torch_fsdp2 = true: use_torch_fsdp2 works with PP 1 and EP 1 only",
        [*FSDP2, *EXPERTS, "expert_model_parallel_size=2"],
        2,
        "cuda",
    ),
    (
        "parallel.virtual_pipeline_model_parallel_size = 2: two interleaved stages need overlap_p2p_comm",
        ["virtual_pipeline_model_parallel_size=2", *PP2, "batch_p2p_comm=true"],
        2,
        "cpu",
    ),
    (
        "parallel.pipeline_model_parallel_size = 2: num_layers",
        [*PP2, "num_layers=4", "account_for_embedding_in_pipeline_split=true"],
        2,
        "cpu",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage = 4: uneven stages",
        ["num_layers_in_first_pipeline_stage=4"],
        1,
        "cpu",
    ),
    (
        "kernels.gradient_accumulation_fusion = true: needs CUDA",
        ["gradient_accumulation_fusion=true"],
        1,
        "cpu",
    ),
    ("kernels.bias_activation_fusion = true: needs CUDA", ["bias_activation_fusion=true"], 1, "cpu"),
    ("kernels.bias_dropout_fusion = true: needs CUDA", ["bias_dropout_fusion=true"], 1, "cpu"),
    ("kernels.masked_softmax_fusion = true: needs CUDA", ["masked_softmax_fusion=true"], 1, "cpu"),
    ("kernels.cross_entropy_loss_fusion = true: needs CUDA", ["cross_entropy_loss_fusion=true"], 1, "cpu"),
    ("kernels.use_te_rng_tracker = true: needs CUDA", ["use_te_rng_tracker=true"], 1, "cpu"),
    ("moe.moe_permute_fusion = true: needs CUDA", ["moe_permute_fusion=true"], 1, "cpu"),
    ("moe.moe_router_fusion = true: needs CUDA", ["moe_router_fusion=true"], 1, "cpu"),
]
BROKEN += broken_guides.BROKEN


@pytest.mark.parametrize(
    ("expected", "overrides", "ranks", "device"), BROKEN, ids=[row[0][:60] for row in BROKEN]
)
def test_a_broken_rule_is_one_line(expected: str, overrides: list[str], ranks: int, device: Device) -> None:
    config = resolve("tiny", [*PLAIN, *overrides]).config
    with pytest.raises(ValueError, match=r".") as caught:
        plan(config, ranks, device)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_no_constraint_of_its_own_repeats_the_catalogue_s() -> None:
    """Each of them refuses something of the list above that the catalogue lets pass."""
    needed = set()
    for _, overrides, ranks, device in BROKEN:
        config = resolve("tiny", [*PLAIN, *overrides]).config
        with pytest.raises(ValueError, match=r".") as caught:
            plan(config, ranks, device)
        if not any(catalogue_problems(config, ranks)):
            said = str(caught.value)
            needed |= {(k, r) for k, _, r in RULES if said.startswith(f"{k} = ") and said.endswith(f": {r}")}
    assert {(key, rule) for key, _, rule in RULES} - needed == set()


def test_what_stops_a_run_without_effect_is_in_the_catalogue() -> None:
    kinds = {c.name: c.kind for c in constraints()}
    assert {kinds[name] for name in WITHOUT_EFFECT} == {"ineffective"}


def test_what_only_costs_something_does_not_stop_a_run() -> None:
    costly = ["manual_gc_interval=0", "moe_router_topk=2"]
    assert plan(resolve("tiny", [*PLAIN, *costly]).config, 1, "cpu").world_size == 1


VALID: list[tuple[list[str], int, Device]] = [
    ([*PP2, *VPP2], 2, "cpu"),
    ([*PP2, *VPP2, "batch_p2p_comm=false"], 2, "cpu"),
    (["pipeline_model_parallel_size=4", VPP2[0], "num_layers=8"], 4, "cuda"),
    ([*PP2, "num_layers_in_first_pipeline_stage=1"], 2, "cpu"),
    ([*PP2, "num_layers=3", "account_for_loss_in_pipeline_split=true"], 2, "cpu"),
    ([*TP2, *EXPERTS, "sequence_parallel=true", "expert_model_parallel_size=2"], 2, "cpu"),
    (["context_parallel_size=2", "cp_comm_type=p2p"], 2, "cuda"),
    (["recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"], 1, "cpu"),
    (["fp8=hybrid", "params_dtype=bf16"], 1, "cuda"),
    ([*FSDP2, *TP2, "sequence_parallel=true"], 4, "cpu"),
    ([*FSDP2, "params_dtype=bf16", "grad_reduce_in_fp32=false"], 2, "cuda"),
]


@pytest.mark.parametrize(("overrides", "ranks", "device"), VALID)
def test_what_is_allowed(overrides: list[str], ranks: int, device: Device) -> None:
    assert plan(resolve("tiny", [*PLAIN, *overrides]).config, ranks, device).world_size == ranks
