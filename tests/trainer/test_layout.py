"""How ranks are arranged, and the rules that are checked before a process starts."""

from __future__ import annotations

import pytest

from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import Device, default_world_size, plan

PLAIN = [
    "data_parallel_size=null",
    "overlap_grad_reduce=false",
    "overlap_param_gather=false",
    "bucket_size=null",
    "micro_batch_size=1",
    "global_batch_size=8",
]
TP2 = ["tensor_model_parallel_size=2"]
PP2 = ["pipeline_model_parallel_size=2"]
VPP2 = ["virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"]
EXPERTS = ["num_moe_experts=4"]
FSDP2 = [
    "use_torch_fsdp2=true",
    "use_distributed_optimizer=false",
    "untie_embeddings_and_output_weights=true",
]


def test_sizes_and_batches() -> None:
    """8 ranks over TP 2 and PP 2 leave DP 2; 8 sequences over DP 2 in ones are 4 micro-batches per rank."""
    layout = plan(resolve("tiny", [*PLAIN, *TP2, *PP2]).config, 8, "cpu")
    assert (layout.tp, layout.cp, layout.dp, layout.pp, layout.vpp) == (2, 1, 2, 2, 1)
    assert layout.num_microbatches == 4


def test_groups_of_eight_ranks() -> None:
    """TP varies fastest, then DP, then PP: rank = tp + 2 dp + 4 pp."""
    groups = plan(resolve("tiny", [*PLAIN, *TP2, *PP2]).config, 8, "cpu").groups()
    assert groups["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert groups["cp"] == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert groups["dp_cp"] == groups["dp"]
    assert groups["ep"] == groups["cp"]
    assert groups["edp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_experts_spread_over_data_parallel_ranks() -> None:
    """4 ranks, DP 4, EP 2: each expert group takes neighbours; replicas of an expert are two apart."""
    layout = plan(resolve("tiny", [*PLAIN, *EXPERTS, "expert_model_parallel_size=2"]).config, 4, "cpu")
    assert (layout.dp, layout.ep, layout.edp) == (4, 2, 2)
    assert layout.groups()["ep"] == [[0, 1], [2, 3]]
    assert layout.groups()["edp"] == [[0, 2], [1, 3]]


def test_ranks_that_a_configuration_asks_for() -> None:
    assert default_world_size(resolve("tiny").config) == 2
    assert default_world_size(resolve("tiny", [*PLAIN, *TP2, *PP2]).config) == 4
    assert default_world_size(resolve("tiny", [*PLAIN, *EXPERTS, "expert_model_parallel_size=4"]).config) == 4
    both = [*PLAIN, *EXPERTS, "tensor_model_parallel_size=3", "expert_model_parallel_size=2"]
    assert default_world_size(resolve("tiny", both).config) == 6


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
        "model.num_attention_heads = 5: not divisible by tensor",
        [*TP2, "num_attention_heads=5", "num_query_groups=5", "kv_channels=16"],
        2,
        "cpu",
    ),
    ("model.num_query_groups = 3: does not divide", ["num_query_groups=3"], 1, "cpu"),
    (
        "model.num_query_groups = 3: neither a multiple nor a divisor",
        [*TP2, "num_query_groups=3", "num_attention_heads=6", "hidden_size=96"],
        2,
        "cpu",
    ),
    ("model.ffn_hidden_size = 351: not divisible by tensor", [*TP2, "ffn_hidden_size=351"], 2, "cpu"),
    ("model.make_vocab_size_divisible_by = 1: ", [*TP2, "make_vocab_size_divisible_by=1"], 2, "cpu"),
    (
        "model.seq_length = 126: not divisible by 2 x context",
        ["context_parallel_size=2", "seq_length=126"],
        2,
        "cpu",
    ),
    ("model.seq_length = 127: ", [*TP2, "sequence_parallel=true", "seq_length=127"], 2, "cpu"),
    ("parallel.sequence_parallel = true: needs tensor", ["sequence_parallel=true"], 1, "cpu"),
    ("parallel.sequence_parallel = false: a mixture of experts", [*TP2, *EXPERTS], 2, "cpu"),
    ("parallel.virtual_pipeline_model_parallel_size = 2: needs pipeline", VPP2[:1], 1, "cpu"),
    ("model.num_layers = 5: not divisible by pipeline", [*PP2, "num_layers=5"], 2, "cpu"),
    ("model.num_layers = 6: not divisible by pipeline", [*PP2, *VPP2, "num_layers=6"], 2, "cpu"),
    (
        "parallel.num_layers_in_first_pipeline_stage = 1: uneven",
        ["num_layers_in_first_pipeline_stage=1"],
        1,
        "cpu",
    ),
    (
        "parallel.num_layers_in_first_pipeline_stage = 2: with num_layers_in_last",
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
    ("overlap.overlap_p2p_comm = true: works with virtual", [*PP2, "overlap_p2p_comm=true"], 2, "cpu"),
    ("overlap.overlap_p2p_comm = false: two interleaved stages with batched", [*PP2, VPP2[0]], 2, "cpu"),
    ("overlap.overlap_p2p_comm = false: two interleaved stages with batched", [*PP2, VPP2[0]], 2, "cuda"),
    ("overlap.batch_p2p_comm = true: excluded", [*PP2, *VPP2, "batch_p2p_comm=true"], 2, "cpu"),
    (
        "overlap.deallocate_pipeline_outputs = true: on gloo",
        [*PP2, *VPP2, "deallocate_pipeline_outputs=true"],
        2,
        "cpu",
    ),
    ("parallel.cp_comm_type = p2p: without", ["context_parallel_size=2", "cp_comm_type=p2p"], 2, "cpu"),
    ("parallel.use_torch_fsdp2 = true: needs pipeline", [*FSDP2, *PP2], 2, "cpu"),
    (
        "parallel.use_torch_fsdp2 = true: shards the optimizer",
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
    ("parallel.use_torch_fsdp2 = true: needs params_dtype", [*FSDP2, "params_dtype=fp16"], 1, "cuda"),
    (
        "precision.grad_reduce_in_fp32 = true: FSDP2 reduces the gradients of bf16",
        [*FSDP2, "params_dtype=bf16"],
        2,
        "cuda",
    ),
    ("checkpoint.save = x: checkpoints of FSDP2", [*FSDP2, "save=x"], 1, "cpu"),
    (
        "environment.cuda_device_max_connections = 1: must not be 1 with FSDP2",
        [*FSDP2, "cuda_device_max_connections=1"],
        1,
        "cuda",
    ),
    ("parallel.expert_model_parallel_size = 2: needs num_moe", ["expert_model_parallel_size=2"], 2, "cpu"),
    (
        "moe.num_moe_experts = 3: not divisible",
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
    ("overlap.overlap_param_gather = true: needs", ["overlap_param_gather=true"], 2, "cpu"),
    ("overlap.bucket_size = 9: is read only", ["bucket_size=9"], 2, "cpu"),
    (
        "overlap.tp_comm_overlap = true: needs",
        [*TP2, "sequence_parallel=true", "tp_comm_overlap=true"],
        2,
        "cpu",
    ),
    ("recompute.recompute_granularity = full: full needs", ["recompute_granularity=full"], 1, "cpu"),
    ("precision.fp8 = hybrid: needs CUDA", ["fp8=hybrid"], 1, "cpu"),
    ("kernels.cuda_graph_impl = local: needs CUDA", ["cuda_graph_impl=local"], 1, "cpu"),
    ("kernels.apply_rope_fusion = true: needs CUDA", ["apply_rope_fusion=true"], 1, "cpu"),
    ("moe.moe_grouped_gemm = true: needs CUDA", ["moe_grouped_gemm=true"], 1, "cpu"),
    ("optimizer.min_lr = 1.0: above lr", ["min_lr=1"], 1, "cpu"),
    ("data.split = 1,0: gives validation nothing", ["split='1,0'"], 1, "cpu"),
    ("checkpoint.save_interval = 5: needs", ["save_interval=5"], 1, "cpu"),
]


@pytest.mark.parametrize(
    ("expected", "overrides", "ranks", "device"), BROKEN, ids=[row[0][:60] for row in BROKEN]
)
def test_a_broken_rule_is_one_line(expected: str, overrides: list[str], ranks: int, device: Device) -> None:
    config = resolve("tiny", [*PLAIN, *overrides]).config
    with pytest.raises(ValueError, match=r".") as caught:
        plan(config, ranks, device)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


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
