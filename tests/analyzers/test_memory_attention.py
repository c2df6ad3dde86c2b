"""Attention scores at the peak of a snapshot, by the stacks that allocated them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results.memory import DeviceMemory
from tests.analyzers.memory_planted import CALL, FORWARD, MIB, SCRIPT, Frame, Planted, one

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
EXP: Frame = ("??", "at::_ops::exp::call(at::Tensor const&)", 0)
BMM: Frame = ("??", "at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)", 0)
ADDMM: Frame = ("??", "at::_ops::addmm::call(at::Tensor const&)", 0)
CAST: Frame = ("??", "at::_ops::_to_copy::call(at::Tensor const&)", 0)
NATIVE: Frame = ("??", "at::_ops::_softmax::call(at::Tensor const&, long, bool)", 0)
FLASH: Frame = ("??", "at::_ops::_scaled_dot_product_flash_attention::call(at::Tensor const&)", 0)
OF_TORCH: Frame = (f"{TORCH}/nn/functional.py", "softmax", 2142)
BY_HAND: Frame = ("/home/ann/net/utils.py", "softmax", 6)
ATTENTION: Frame = ("/home/ann/net/model.py", "causal_attention", 30)
MATMUL: Frame = ("??", "at::_ops::matmul::call(at::Tensor const&, at::Tensor const&)", 0)
LOG_NATIVE: Frame = ("??", "at::native::host_softmax<LogSoftMaxForwardEpilogue, true>(at::Tensor const&)", 0)
MODULE: Frame = (f"{TORCH}/nn/modules/activation.py", "forward", 1600)
MEGATRON = "/opt/venv/lib/python3.11/site-packages/megatron/core"
FUSED_SOFTMAX: Frame = (f"{MEGATRON}/fusions/fused_softmax.py", "forward", 330)
TORCH_SOFTMAX: Frame = (f"{MEGATRON}/fusions/fused_softmax.py", "forward_torch_softmax", 380)
DOT_PRODUCT: Frame = (f"{MEGATRON}/transformer/dot_product_attention.py", "forward", 200)
LOG: Frame = (f"{TORCH}/nn/functional.py", "log_softmax", 2200)


def kept(*allocations: tuple[int, tuple[Frame, ...]]) -> Planted:
    """Allocations of so many MiB by these stacks, the innermost call first; all of them stay."""
    planted = Planted()
    for i, (mib, stack) in enumerate(allocations):
        planted.alloc((i + 1) << 32, mib * MIB, *stack, CALL, SCRIPT)
    return planted


def measured(folder: Path, *allocations: tuple[int, tuple[Frame, ...]]) -> DeviceMemory:
    return one(kept(*allocations), folder)


@pytest.mark.parametrize(
    "softmax", [(EXP, BY_HAND), (NATIVE, OF_TORCH), (NATIVE,)], ids=["by hand", "functional", "operator"]
)
def test_a_function_named_for_attention(tmp_path: Path, softmax: tuple[Frame, ...]) -> None:
    """Softmax of 64 MiB, its copy in 16 bits of 32, a value of 8; 64 of a projection elsewhere: 96."""
    device = measured(
        tmp_path,
        (64, (*softmax, ATTENTION)),
        (32, (CAST, ATTENTION)),
        (8, (CAST, ATTENTION)),
        (64, (ADDMM, FORWARD)),
    )
    (row,) = device.attention
    assert (row.function, row.file, row.evidence) == ("causal_attention", "net/model.py", "name")
    assert (row.bytes, row.count, row.largest_bytes) == (96 * MIB, 2, 64 * MIB)


def test_a_nameless_function_is_known_by_its_products(tmp_path: Path) -> None:
    stacks = ((64, (NATIVE, OF_TORCH, FORWARD)), (32, (BMM, FORWARD)))
    (row,) = measured(tmp_path, *stacks).attention
    # The product in 16 bits is a score as well.
    assert (row.evidence, row.bytes) == ("products", 96 * MIB)
    # torch.matmul of batches is one as well.
    (row,) = measured(tmp_path, stacks[0], (32, (BMM, MATMUL, FORWARD))).attention
    assert row.bytes == 96 * MIB
    # A router and a vocabulary multiply without a batch, a product of another size is of something else.
    for other in ((32, (ADDMM, FORWARD)), (32, (MATMUL, FORWARD)), (16, (BMM, FORWARD))):
        assert measured(tmp_path, stacks[0], other).attention == []


@pytest.mark.parametrize(
    "stack",
    [(NATIVE, FLASH, ATTENTION), (EXP, LOG, FORWARD), (LOG_NATIVE, FORWARD), (CAST, ATTENTION)],
    ids=["fused", "log", "log in C++", "none"],
)
def test_what_is_no_score(tmp_path: Path, stack: tuple[Frame, ...]) -> None:
    assert measured(tmp_path, (64, stack), (64, (BMM, FORWARD))).attention == []


def test_megatrons_own_attention_and_softmax_as_a_module(tmp_path: Path) -> None:
    softmax = (NATIVE, TORCH_SOFTMAX, FUSED_SOFTMAX, DOT_PRODUCT)
    (row,) = measured(tmp_path, (64, softmax), (32, (CAST, FUSED_SOFTMAX, DOT_PRODUCT))).attention
    assert (row.file, row.bytes) == ("megatron/core/transformer/dot_product_attention.py", 96 * MIB)
    own: Frame = ("/home/ann/net/attention.py", "forward", 9)
    (row,) = measured(tmp_path, (64, (NATIVE, OF_TORCH, MODULE, own))).attention
    assert (row.file, row.bytes) == ("net/attention.py", 64 * MIB)


def test_an_allocation_has_one_owner(tmp_path: Path) -> None:
    """Softmax of 64 MiB in a function that another one calls, and 64 in that one itself."""
    inner: Frame = ("/home/ann/net/attn.py", "inner", 5)
    rows = measured(tmp_path, (64, (NATIVE, inner, ATTENTION)), (64, (NATIVE, ATTENTION))).attention
    assert {row.function: row.bytes for row in rows} == {"inner": 64 * MIB, "causal_attention": 64 * MIB}


def test_freed_scores_and_small_ones_do_not_count(tmp_path: Path) -> None:
    planted = kept((64, (NATIVE, ATTENTION)))
    planted.free(1 << 32, 64 * MIB, ATTENTION, SCRIPT)
    planted.alloc(9 << 32, 100 * MIB, CAST, FORWARD)
    planted.alloc(10 << 32, MIB - 1, NATIVE, ATTENTION)
    assert one(planted, tmp_path).attention == []
