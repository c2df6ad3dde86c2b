"""Attention scores at the peak of a snapshot, and PD511 on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis
from perfdoc.rules.engine.case import Case
from tests.analyzers.memory_planted import CALL, FORWARD, MIB, SCRIPT, Frame, Planted, one
from tests.rules.cases import result
from tests.rules.examples import example

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
    # A router multiplies without a batch, a product of another size is of something else.
    for other in ((32, (ADDMM, FORWARD)), (16, (BMM, FORWARD))):
        assert measured(tmp_path, stacks[0], other).attention == []


@pytest.mark.parametrize(
    "stack",
    [(NATIVE, FLASH, ATTENTION), (EXP, LOG, FORWARD), (CAST, ATTENTION)],
    ids=["fused", "log", "none"],
)
def test_what_is_no_score(tmp_path: Path, stack: tuple[Frame, ...]) -> None:
    assert measured(tmp_path, (64, stack), (64, (BMM, FORWARD))).attention == []


def test_freed_scores_and_small_ones_do_not_count(tmp_path: Path) -> None:
    planted = kept((64, (NATIVE, ATTENTION)))
    planted.free(1 << 32, 64 * MIB, ATTENTION, SCRIPT)
    planted.alloc(9 << 32, 100 * MIB, CAST, FORWARD)
    planted.alloc(10 << 32, MIB - 1, NATIVE, ATTENTION)
    assert one(planted, tmp_path).attention == []


def remembered(folder: Path, scores_mib: int, rest_mib: int) -> Case:
    planted = kept((scores_mib, (NATIVE, ATTENTION)), (rest_mib, (ADDMM, FORWARD)))
    devices = measure_snapshot(planted.write(folder / "m.pickle"))
    memory = MemoryAnalysis(state="measured", reason="", remedy="", devices=devices, processes=[])
    case = Case.of([])
    return Case(captures=case.captures, job=case.job, gains=case.gains, memory=memory)


@example("PD511")
def scores_in_memory(folder: Path) -> Case:
    """A snapshot at whose peak a softmax in a function named causal_attention holds 400 of 1,000 MiB."""
    return remembered(folder, 400, 600)


@pytest.mark.parametrize(
    ("scores", "state", "level"),
    [
        (250, "fires", "problem"),
        (249, "fires", "information"),
        (50, "fires", "information"),
        (49, "passes", ""),
    ],
)
def test_the_share_of_the_peak_decides(tmp_path: Path, scores: int, state: str, level: str) -> None:
    found = result("PD511", remembered(tmp_path, scores, 1000 - scores))
    assert (found.state, found.level if level else "", found.gain) == (state, level, None)
    assert ("scaled_dot_product_attention" in found.remedy) == (state == "fires")
    assert found.evidence[0].value.endswith(f"{scores / 10:.1f} %")


def test_without_a_history_nothing_is_said() -> None:
    assert result("PD511", Case.of([])).state == "skipped"
