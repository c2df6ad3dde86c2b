"""What lies between exchanges of all ranks with all: experts, or attention whose heads are exchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.pipeline.operations import rank_operations
from tests.analyzers.device_views import view_of
from tests.analyzers.test_dimensions import SEND_RECV
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder

ATTENTION = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)"
EXCHANGE = "exchange"
ULYSSES = [GEMM, EXCHANGE, ATTENTION, EXCHANGE, GEMM]
"""A layer: heads are exchanged around attention, its products lie outside."""
EXPERTS = [GEMM, ATTENTION, GEMM, EXCHANGE, GEMM, EXCHANGE]
"""A layer: tokens are exchanged around experts' products, attention has its own beside it."""


def found_in(layer: list[str], layers: int, folder: Path) -> list[bool]:
    """Which stretches hold experts, of two steps that no range names and no group is known of."""
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark("perfdoc.rank 0 world=4 device=cuda", 1)
    for step in range(2):
        at = 10_000_000 * step
        host.range(f"perfdoc.step {step}", at + 50, at + 999_999)
        # Gradients are summed behind the last.
        for i, name in enumerate([*layer * layers, ALL_REDUCE]):
            begin, call = at + 1_000_000 + 100_000 * i, at + 100 + 300 * i
            if name is EXCHANGE:
                host.range("dist.all_to_all_single", call, call + 200)
            kernel, stream = (SEND_RECV, 21) if name is EXCHANGE else (name, 7 + (name is ALL_REDUCE))
            device.kernel(kernel, begin, begin + 100_000, stream=stream, launch=(host, call + 10, call + 20))
    view = view_of(builder, folder)
    operations = rank_operations(view, collective_calls(view))
    assert operations.reason == ""
    return [bool(x) for x in operations.stretches.is_experts]


@pytest.mark.parametrize("layers", [1, 3])
def test_products_between_exchanges_of_heads_are_no_experts(layers: int, tmp_path: Path) -> None:
    found = found_in(ULYSSES, layers, tmp_path)
    assert len(found) == 2 * layers + 1
    assert not any(found)


@pytest.mark.parametrize("layers", [2, 3])
def test_products_between_exchanges_of_tokens_are_experts(layers: int, tmp_path: Path) -> None:
    found = found_in(EXPERTS, layers, tmp_path)
    # Attention and experts in turn; behind the last exchange nothing is left.
    assert found == [False, True] * layers + [False]


def test_products_at_the_edge_of_a_pass_are_no_experts(tmp_path: Path) -> None:
    """Embeddings before the first exchange, logits behind the last: no attention beside them, no experts."""
    found = found_in([*[GEMM, EXCHANGE], *EXPERTS[1:], *EXPERTS, GEMM], 1, tmp_path)
    assert found == [False, False, True, False, True, False]
