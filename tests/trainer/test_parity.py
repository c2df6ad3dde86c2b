"""Every layout computes what one rank computes: same checkpoint, same data, same losses and gradient
norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import plan
from tests.trainer.launch import need_megatron, read_result, run_cases
from tests.trainer.overrides import FSDP2, PP2, VPP2

pytestmark = pytest.mark.slow

STEPS = 6
"""The first is taken by one rank and saved; the other five are compared."""
RELATIVE = 1e-4

SMALL = [
    "num_layers=4",
    "hidden_size=32",
    "ffn_hidden_size=64",
    "num_attention_heads=4",
    "num_query_groups=2",
    "seq_length=32",
    "make_vocab_size_divisible_by=16",
    "micro_batch_size=1",
    "global_batch_size=8",
    f"train_iters={STEPS}",
    "lr_warmup_iters=2",
    "eval_interval=null",
    "data_parallel_size=null",
    "overlap_grad_reduce=false",
    "overlap_param_gather=false",
    "bucket_size=null",
]
FRESH = "load_weights_only=true"
EXPERTS = ["num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=32"]
OVERLAPS = ["overlap_grad_reduce=true", "overlap_param_gather=true", "bucket_size=8000"]
TP2 = ["tensor_model_parallel_size=2", "sequence_parallel=true"]
# FSDP2 begins from the seed: it has no checkpoints. The seed gives every layout without stages the same
# weights.

RANKS: dict[int, dict[str, list[str]]] = {
    2: {
        "dp2": [],
        "dp2_overlaps": OVERLAPS,
        "dp2_padding_owner": [*OVERLAPS, "pad_buckets_for_high_nccl_busbw=true"],
        "dp2_all_reduce": [FRESH, "use_distributed_optimizer=false"],
        "tp2": ["tensor_model_parallel_size=2"],
        "tp2_sp": TP2,
        "tp2_sp_recompute": [
            *TP2,
            "recompute_granularity=full",
            "recompute_method=uniform",
            "recompute_num_layers=1",
        ],
        "tp2_sp_selective": [
            *TP2,
            "recompute_granularity=selective",
            "recompute_modules=[core_attn,mlp,layernorm]",
        ],
        "pp2": PP2,
        "pp2_uneven": [*PP2, "num_layers_in_first_pipeline_stage=1"],
        "pp2_layout": [*PP2, "pipeline_model_parallel_layout=Et|tttL"],
        "pp2_vpp2": PP2 + VPP2,
        "pp2_vpp2_of_a_layout": [*PP2, VPP2[1], "pipeline_model_parallel_layout='E|tt|t|tL'"],
        "pp2_vpp2_gather_with_step": [
            *[*PP2, *VPP2, *OVERLAPS, FRESH, "overlap_param_gather_with_optimizer_step=true"]
        ],
        "dp2_fp32_sums": [*OVERLAPS, "reduce_scatter_with_fp32_accumulation=true"],
        "cp2": ["context_parallel_size=2"],
        "fsdp2": FSDP2,
        "fsdp2_cp2_recompute": [
            *FSDP2,
            "context_parallel_size=2",
            "recompute_granularity=full",
            "recompute_method=uniform",
            "recompute_num_layers=1",
        ],
        "ep2_allgather": [*EXPERTS, "expert_model_parallel_size=2", "moe_token_dispatcher_type=allgather"],
        "ep2_alltoall": [*EXPERTS, "expert_model_parallel_size=2", "moe_token_dispatcher_type=alltoall"],
    },
    4: {
        "tp4_of_two_groups": ["tensor_model_parallel_size=4", "sequence_parallel=true"],
        "pp2_dp2_stages_inside": [*PP2, "use_tp_pp_dp_mapping=true"],
        "pp2_tp2_stages_inside": [*PP2, *TP2, "use_tp_pp_dp_mapping=true"],
        "pp4": ["pipeline_model_parallel_size=4"],
        "cp2_dp2_overlaps": ["context_parallel_size=2", *OVERLAPS],
        "fsdp2_tp2_sp": [*FSDP2, *TP2],
        "ep2_tp2_dp2": [*EXPERTS, *TP2, "expert_model_parallel_size=2"],
    },
    8: {"tp2_pp2_dp2": TP2 + PP2, "tp2_pp2_vpp2_dp2_overlaps": TP2 + PP2 + VPP2 + OVERLAPS},
}
CASES = [(ranks, name) for ranks, cases in RANKS.items() for name in cases]


def _kind(overrides: list[str]) -> str:
    """Which run of one rank a case is compared with."""
    if FRESH in overrides:
        return "fresh"
    if FSDP2[0] in overrides:
        return "seed"
    return "experts" if EXPERTS[0] in overrides else "dense"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """World size 1, dense, with experts, and from weights alone; checkpoints after the first step."""
    need_megatron()
    folder = tmp_path_factory.mktemp("one")
    common = [*SMALL, f"data_cache={folder / 'data'}"]
    saving = ["save_interval=1", "keep_checkpoints=10"]
    run_cases(
        {
            "dense": [*common, *saving, f"save={folder / 'dense'}"],
            "experts": [*common, *saving, *EXPERTS, f"save={folder / 'experts'}"],
            "seed": [*common, *FSDP2[1:]],
            "fresh": [*common, FRESH, f"load={folder / 'dense'}", "load_step=1"],
        },
        1,
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def trained(reference: Path) -> Callable[[int], Path]:
    """Number of ranks → folder with the results of all its cases, trained when first asked for."""

    @functools.cache
    def train(ranks: int) -> Path:
        folder = reference / str(ranks)
        cases = {}
        for name, overrides in RANKS[ranks].items():
            cases[name] = [*SMALL, *overrides, f"data_cache={reference / 'data'}"]
            if FSDP2[0] not in overrides:
                start_from = reference / ("experts" if EXPERTS[0] in overrides else "dense")
                cases[name] += [f"load={start_from}", "load_step=1"]
        run_cases(cases, ranks, folder)
        return folder

    return train


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_many_ranks_equal_one(reference: Path, trained: Callable[[int], Path], ranks: int, name: str) -> None:
    one = read_result(reference, _kind(RANKS[ranks][name]), 0)
    for rank in range(ranks):
        many = read_result(trained(ranks), name, rank)
        first = one["steps"].index(many["steps"][0])
        assert many["steps"] == one["steps"][first:]
        assert len(many["steps"]) >= STEPS - 1
        assert many["loss"] == pytest.approx(one["loss"][first:], rel=RELATIVE)
        assert many["grad_norm"] == pytest.approx(one["grad_norm"][first:], rel=RELATIVE)
    worst = max(
        abs(a / b - 1)
        for key in ("loss", "grad_norm")
        for a, b in zip(many[key], one[key][first:], strict=True)
    )
    print(f"{ranks} ranks {name}: largest relative difference {worst:.1e}")  # noqa: T201 - for -rP


@pytest.mark.parametrize(("ranks", "name"), [case for case in CASES if case[0] > 2])
def test_groups_are_those_of_the_plan(trained: Callable[[int], Path], ranks: int, name: str) -> None:
    config = resolve("tiny", [*SMALL, *RANKS[ranks][name]]).config
    planned = plan(config, ranks, "cpu").groups()
    for rank in range(ranks):
        made = read_result(trained(ranks), name, rank)["groups"]
        for dimension, members in made.items():
            assert sorted(members) in [sorted(group) for group in planned[dimension]], (rank, dimension)


def test_the_loss_falls(reference: Path) -> None:
    losses = read_result(reference, "dense", 0)["loss"]
    assert losses[-1] < losses[0]
