"""What a run is refused for before a process starts: constraints of the catalogue, and the trainer's own."""

from __future__ import annotations

import pytest

from perfdoc.knobs.constraints import constraints
from perfdoc.trainer.config import resolve
from perfdoc.trainer.constraints import RULES, WITHOUT_EFFECT, catalogue_problems
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
    (
        "overlap.deallocate_pipeline_outputs = true: on gloo",
        [*PP2, *VPP2, "deallocate_pipeline_outputs=true"],
        2,
        "cpu",
    ),
    ("parallel.cp_comm_type = p2p: without", ["context_parallel_size=2", "cp_comm_type=p2p"], 2, "cpu"),
    ("parallel.use_torch_fsdp2 = true: overlaps", [*FSDP2, "overlap_grad_reduce=true"], 2, "cpu"),
    (
        "parallel.use_torch_fsdp2 = true: shards the embedding",
        [*FSDP2, "untie_embeddings_and_output_weights=false"],
        1,
        "cpu",
    ),
    (
        "precision.grad_reduce_in_fp32 = true: FSDP2 reduces the gradients of bf16",
        [*FSDP2, "params_dtype=bf16"],
        2,
        "cuda",
    ),
    ("checkpoint.save = x: checkpoints of FSDP2", [*FSDP2, "save=x"], 1, "cpu"),
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
    (
        "moe.moe_token_dispatcher_type = flex: flex needs CUDA",
        [*EXPERTS, "moe_token_dispatcher_type=flex", "expert_model_parallel_size=2"],
        2,
        "cpu",
    ),
    (
        "overlap.tp_comm_overlap = true: needs",
        [*TP2, "sequence_parallel=true", "tp_comm_overlap=true"],
        2,
        "cpu",
    ),
    ("precision.fp8 = hybrid: needs CUDA", ["fp8=hybrid"], 1, "cpu"),
    ("kernels.apply_rope_fusion = true: needs CUDA", ["apply_rope_fusion=true"], 1, "cpu"),
    ("moe.moe_grouped_gemm = true: needs CUDA", ["moe_grouped_gemm=true"], 1, "cpu"),
    ("optimizer.min_lr = 1.0: above lr", ["min_lr=1"], 1, "cpu"),
    ("data.split = 1,0: gives validation nothing", ["split='1,0'"], 1, "cpu"),
    ("checkpoint.save_interval = 5: needs", ["save_interval=5"], 1, "cpu"),
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
        "parallel.expert_tensor_parallel_size = 2: needs num_moe_experts",
        ["expert_tensor_parallel_size=2"],
        2,
        "cpu",
    ),
    ("overlap.nccl_ub = true: needs CUDA", ["nccl_ub=true"], 1, "cpu"),
    (
        "overlap.use_sharp = true: needs CUDA and an InfiniBand fabric with SHARP",
        ["use_sharp=true"],
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
    ("recompute.cpu_offloading = true: needs CUDA", ["cpu_offloading=true"], 1, "cpu"),
    (
        "optimizer.use_precision_aware_optimizer = true: needs CUDA and Transformer Engine",
        ["use_precision_aware_optimizer=true"],
        1,
        "cpu",
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
        "kernels.transformer_impl = transformer_engine: Transformer Engine does not run without a GPU",
        ["transformer_impl=transformer_engine"],
        1,
        "cpu",
    ),
    (
        "kernels.cuda_graph_impl = local: needs CUDA",
        ["cuda_graph_impl=local", "use_te_rng_tracker=true"],
        1,
        "cpu",
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
            needed |= {(k, r) for k, _, r in RULES if f".{k} = " in said and said.endswith(f": {r}")}
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
