"""Every layout computes what one rank computes: same checkpoint, same data, same losses and gradient norms."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import plan

from tests.trainer.launch import need_megatron, read_result, run_cases

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
EXPERTS = ["num_moe_experts=4", "moe_router_topk=2", "moe_ffn_hidden_size=32"]
OVERLAPS = ["overlap_grad_reduce=true", "overlap_param_gather=true", "bucket_size=8000"]
TP2 = ["tensor_model_parallel_size=2", "sequence_parallel=true"]
PP2 = ["pipeline_model_parallel_size=2"]
VPP2 = ["virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"]

TWO_RANKS: dict[str, list[str]] = {
    "dp2": [],
    "dp2_overlaps": OVERLAPS,
    "tp2": ["tensor_model_parallel_size=2"],
    "tp2_sp": TP2,
    "pp2": PP2,
    "pp2_vpp2": PP2 + VPP2,
    "cp2": ["context_parallel_size=2"],
    "ep2_allgather": [*EXPERTS, "expert_model_parallel_size=2", "moe_token_dispatcher_type=allgather"],
    "ep2_alltoall": [*EXPERTS, "expert_model_parallel_size=2", "moe_token_dispatcher_type=alltoall"],
}
EIGHT_RANKS: dict[str, list[str]] = {
    "tp2_pp2_dp2": TP2 + PP2,
    "tp2_pp2_vpp2_dp2_overlaps": TP2 + PP2 + VPP2 + OVERLAPS,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """World size 1, dense and with experts: results, and checkpoints after the first step."""
    need_megatron()
    folder = tmp_path_factory.mktemp("one")
    common = [*SMALL, f"data_cache={folder / 'data'}", "save_interval=1", "keep_checkpoints=10"]
    run_cases(
        {
            "dense": [*common, f"save={folder / 'dense'}"],
            "experts": [*common, *EXPERTS, f"save={folder / 'experts'}"],
        },
        1,
        folder,
    )
    for kind in ("dense", "experts"):
        first = "step_00000001"
        shutil.copytree(folder / kind / first, folder / f"{kind}-start" / first)
    return folder


def _from_start(reference: Path, cases: dict[str, list[str]]) -> dict[str, list[str]]:
    return {
        name: [
            *SMALL,
            *overrides,
            f"data_cache={reference / 'data'}",
            f"load={reference / ('experts-start' if EXPERTS[0] in overrides else 'dense-start')}",
        ]
        for name, overrides in cases.items()
    }


@pytest.fixture(scope="module")
def two_ranks(reference: Path) -> Path:
    folder = reference / "two"
    run_cases(_from_start(reference, TWO_RANKS), 2, folder)
    return folder


@pytest.fixture(scope="module")
def eight_ranks(reference: Path) -> Path:
    folder = reference / "eight"
    run_cases(_from_start(reference, EIGHT_RANKS), 8, folder)
    return folder


def _compare(reference: Path, folder: Path, name: str, overrides: list[str]) -> None:
    one = read_result(reference, "experts" if EXPERTS[0] in overrides else "dense", 0)
    many = read_result(folder, name, 0)
    assert many["steps"] == [2, 3, 4, 5, 6]
    assert many["loss"] == pytest.approx(one["loss"][1:], rel=RELATIVE)
    assert many["grad_norm"] == pytest.approx(one["grad_norm"][1:], rel=RELATIVE)
    worst = max(
        abs(a / b - 1)
        for key in ("loss", "grad_norm")
        for a, b in zip(many[key], one[key][1:], strict=True)
    )
    print(f"{name}: largest relative difference {worst:.1e}")  # noqa: T201 - shown by pytest -rP


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_equal_one(reference: Path, two_ranks: Path, name: str) -> None:
    _compare(reference, two_ranks, name, TWO_RANKS[name])


@pytest.mark.parametrize("name", EIGHT_RANKS)
def test_eight_ranks_equal_one(reference: Path, eight_ranks: Path, name: str) -> None:
    _compare(reference, eight_ranks, name, EIGHT_RANKS[name])


@pytest.mark.parametrize("name", EIGHT_RANKS)
def test_groups_are_those_of_the_plan(eight_ranks: Path, name: str) -> None:
    config = resolve("tiny", [*SMALL, *EIGHT_RANKS[name]]).config
    planned = plan(config, 8, "cpu").groups()
    for rank in range(8):
        made = read_result(eight_ranks, name, rank)["groups"]
        for dimension, ranks in made.items():  # type: ignore[attr-defined]
            assert sorted(ranks) in [sorted(group) for group in planned[dimension]], (rank, dimension)


def test_the_loss_falls(reference: Path) -> None:
    losses = read_result(reference, "dense", 0)["loss"]
    assert losses[-1] < losses[0]
