"""What a run is refused for before a process starts: constraints of the catalogue, and the trainer's own."""

from __future__ import annotations

import pytest

from perfdoc.knobs.constraints import constraints
from perfdoc.profiling.marks import DeviceKind as Device
from perfdoc.trainer.config import resolve
from perfdoc.trainer.config.tables import TABLES
from perfdoc.trainer.constraints import RULES, catalogue_problems
from perfdoc.trainer.layout import plan
from tests.trainer.overrides import EXPERTS, FSDP2, KERNELS, PLAIN, PP2, TP2, VPP2

TP2_SP = [*TP2, "sequence_parallel=true"]
EP2 = [*EXPERTS, "expert_model_parallel_size=2"]
STEP = [
    *[*PP2, *VPP2, "overlap_grad_reduce=true", "overlap_param_gather=true"],
    "overlap_param_gather_with_optimizer_step=true",
]
NOT_ON_A_CPU = {
    **{name: [f"{name}=true"] for name in TABLES.cuda_only},
    "fine_grained_activation_offloading": [
        *["fine_grained_activation_offloading=true", "offload_modules=[core_attn]"],
        "nvte_cpu_offload_v1=1",
    ],
    "empty_unused_memory_level": ["empty_unused_memory_level=1"],
    "memory_snapshot_path": ["memory_snapshot_path=a"],
}
NEEDING = {
    "fp8": ["fp8=hybrid", "params_dtype=bf16"],
    "fp4": ["fp4=e2m1", "params_dtype=bf16"],
    "cpu_offloading": ["cpu_offloading=true", "cpu_offloading_num_layers=1"],
    "tp_comm_overlap": [*TP2_SP, "tp_comm_overlap=true"],
    "delay_wgrad_compute": [*EP2, "params_dtype=bf16", "overlap_moe_expert_parallel_comm=true"]
    + ["delay_wgrad_compute=true"],
    "moe_permute_fusion": [*EXPERTS, "moe_permute_fusion=true"],
    "moe_router_fusion": [*EXPERTS, "moe_router_fusion=true"],
}
SIZES: list[tuple[str, list[str], int, Device]] = [
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
]
OWN: list[tuple[str, list[str], int, Device]] = [
    *(
        (f".{name} = ", overrides, 2 if name == "use_megatron_fsdp" else 1, "cpu")
        for name, overrides in NOT_ON_A_CPU.items()
    ),
    ("model.make_vocab_size_divisible_by = 1: ", [*TP2, "make_vocab_size_divisible_by=1"], 2, "cpu"),
    (
        "overlap.deallocate_pipeline_outputs = true: on gloo",
        [*PP2, *VPP2, "deallocate_pipeline_outputs=true"],
        2,
        "cpu",
    ),
    ("parallel.cp_comm_type = p2p: without", ["context_parallel_size=2", "cp_comm_type=p2p"], 2, "cpu"),
    (
        "parallel.use_torch_fsdp2 = true: shards the embedding",
        [*FSDP2, "untie_embeddings_and_output_weights=false"],
        1,
        "cpu",
    ),
    ("checkpoint.save = x: checkpoints of FSDP2", [*FSDP2, "save=x"], 1, "cpu"),
    ("checkpoint.save = x: checkpoints of Megatron FSDP", ["use_megatron_fsdp=true", "save=x"], 2, "cuda"),
    (
        "parallel.expert_tensor_parallel_size = 2: above 1 with EP fails on gloo",
        [*TP2_SP, *EP2, "expert_tensor_parallel_size=2"],
        4,
        "cpu",
    ),
    (
        "moe.moe_token_dispatcher_type = flex: flex needs DeepEP",
        [*EP2, "moe_token_dispatcher_type=flex"],
        2,
        "cpu",
    ),
    ("optimizer.min_lr = 1.0: above lr", ["min_lr=1"], 1, "cpu"),
    ("optimizer.lr_warmup_iters = 300: not below lr_decay_iters", ["lr_warmup_iters=300"], 1, "cpu"),
    ("data.split = 1,0: gives validation nothing", ["split='1,0'"], 1, "cpu"),
    ("data.split = 0,1: gives training nothing", ["split='0,1'"], 1, "cpu"),
    ("checkpoint.save_interval = 5: needs", ["save_interval=5"], 1, "cpu"),
    ("checkpoint.load_step = 5: needs checkpoint.load", ["load_step=5"], 1, "cpu"),
    (
        "parallel.num_distributed_optimizer_instances = 2: does not divide the experts' DP",
        [*TP2_SP, *EXPERTS, "expert_model_parallel_size=4", "num_distributed_optimizer_instances=2"],
        4,
        "cuda",
    ),
    ("kernels.cuda_graph_impl = local: needs CUDA", ["cuda_graph_impl=local"], 1, "cpu"),
    (
        "overlap.overlap_param_gather_with_optimizer_step = true: one optimizer per chunk",
        [*STEP, "load=x"],
        2,
        "cpu",
    ),
    (
        "parallel.use_tp_pp_dp_mapping = true: needs the same groups",
        [*PP2, *EP2, "use_tp_pp_dp_mapping=true"],
        4,
        "cuda",
    ),
    ("profiling.profile_ranks = ", ["profile_ranks=[0,2]"], 2, "cpu"),
]
BARE: list[tuple[str, list[str], int]] = [
    *((name, NEEDING.get(name, [f"{name}=true"]), 1) for name in TABLES.needs_package),
    *((name, NEEDING[name], 2) for name in TABLES.needs_layers),
    *(
        (name, [f"{name}={'flash' if name == 'attention_backend' else 1}"], 1)
        for name in TABLES.read_by_layers
    ),
    ("transformer_impl", ["transformer_impl=transformer_engine"], 1),
    ("cp_comm_type", ["context_parallel_size=2", "cp_comm_type=p2p"], 2),
    ("moe_grouped_gemm", [*EXPERTS, "moe_grouped_gemm=true"], 1),
    ("moe_token_dispatcher_type", [*EP2, "moe_token_dispatcher_type=flex"], 2),
    ("num_distributed_optimizer_instances", ["num_distributed_optimizer_instances=2"], 2),
    ("cross_entropy_fusion_impl", ["cross_entropy_loss_fusion=true", "cross_entropy_fusion_impl=te"], 1),
]
"""(setting, overrides, ranks) of what a GPU can do with KERNELS alone."""
CATALOGUE: list[tuple[str, list[str], int, Device]] = [
    (
        "kernels.cuda_graph_impl = transformer_engine: nobody here calls",
        ["cuda_graph_impl=transformer_engine"],
        1,
        "cuda",
    ),
    ("model.num_query_groups = 3: does not divide", ["num_query_groups=3"], 1, "cpu"),
    ("parallel.pipeline_model_parallel_size = 2: num_layers", [*PP2, "num_layers=5"], 2, "cpu"),
    (
        "training.global_batch_size = 9: the interleaved schedule needs micro-batches per step",
        [*PP2, *VPP2, "microbatch_group_size_per_vp_stage=2", "global_batch_size=9"],
        2,
        "cuda",
    ),
    (
        "fsdp.fsdp_double_buffer = true: fsdp_double_buffer is read with use_megatron_fsdp only",
        ["fsdp_double_buffer=true"],
        2,
        "cuda",
    ),
]
BROKEN = SIZES + OWN + CATALOGUE


@pytest.mark.parametrize(
    ("expected", "overrides", "ranks", "device"), BROKEN, ids=[row[0][:60] for row in BROKEN]
)
def test_a_broken_rule_is_one_line(expected: str, overrides: list[str], ranks: int, device: Device) -> None:
    config = resolve("tiny", [*PLAIN, *overrides]).config
    with pytest.raises(ValueError, match=r".") as caught:
        plan(config, ranks, device, KERNELS)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "overrides", "ranks"), BARE, ids=[row[0] for row in BARE])
def test_a_kernel_that_is_not_installed_is_one_line(name: str, overrides: list[str], ranks: int) -> None:
    config = resolve("tiny", [*PLAIN, *overrides]).config
    assert plan(config, ranks, "cuda", KERNELS).world_size == ranks
    for device, packages in (("cuda", ()), ("cpu", KERNELS)):
        if name == "num_distributed_optimizer_instances" and device == "cpu":
            continue
        named = name if device == "cuda" else "[a-z_0-9]+"  # a CPU lacks more
        with pytest.raises(ValueError, match=rf"\.{named} = .*: .*(needs|installed|here|without)") as caught:
            plan(config, ranks, device, packages)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_no_constraint_of_its_own_repeats_the_catalogue_s() -> None:
    """Each of them refuses something of the list above that the catalogue lets pass."""
    needed = set()
    bare = [("", overrides, ranks, "cuda", ()) for _, overrides, ranks in BARE]
    for _, overrides, ranks, device, packages in [*((*row, KERNELS) for row in OWN), *bare]:
        config = resolve("tiny", [*PLAIN, *overrides]).config
        with pytest.raises(ValueError, match=r".") as caught:
            plan(config, ranks, device, packages)  # type: ignore[arg-type]
        assert not any(catalogue_problems(config, ranks)), overrides
        said = str(caught.value)
        needed |= {(k, r) for k, _, r in RULES if f".{k} = " in said and said.endswith(f": {r}")}
    assert {(key, rule) for key, _, rule in RULES} - needed == set()


def test_what_stops_a_run_without_effect_is_in_the_catalogue() -> None:
    kinds = {c.name: c.kind for c in constraints()}
    assert {kinds[name] for name in TABLES.without_effect} == {"ineffective"}


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
    assert plan(resolve("tiny", [*PLAIN, *overrides]).config, ranks, device, KERNELS).world_size == ranks
