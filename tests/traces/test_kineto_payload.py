"""Message sizes in NCCL's own counting, from PyTorch's element counts."""

from __future__ import annotations

import pytest

from perfdoc.traces.kineto.payload import PayloadRows, message_bytes
from perfdoc.traces.kineto.values import KernelArgs
from perfdoc.traces.table import Strings


@pytest.mark.parametrize(
    ("collective", "sent", "received", "dtype", "expected"),
    [
        ("allreduce", 1000, 1000, "Float", 4000),
        ("allreduce_coalesced", 1000, 1000, "Half", 2000),
        ("broadcast", 53, 53, "Long", 424),
        ("_reduce_oop", 10, 10, "Double", 80),
        # What one rank sends: 25136 of the 201088 elements that all eight end up with.
        ("_allgather_base", 25136, 201088, "BFloat16", 50272),
        ("all_gather", 8, 64, "Byte", 8),
        ("all_gather_into_tensor_coalesced", 8, 64, "Char", 8),
        # What one rank receives.
        ("_reduce_scatter_base", 8192, 1024, "BFloat16", 2048),
        ("reduce_scatter_tensor_coalesced", 8192, 1024, "Float", 4096),
        # What goes to each of the eight peers.
        ("all_to_all", 8000, 8000, "Float8_e4m3fn", 1000),
        ("all_to_all", 8001, 8001, "Float", -1),
        ("all_to_allv", 8000, 8000, "Float", -1),
        ("send", 7, 7, "Int", 28),
        ("recv", 7, 9, "Int", 36),
        ("gather", 7, 56, "ComplexFloat", 56),
        ("scatter", 56, 7, "ComplexDouble", 112),
        ("barrier", 0, 0, "Byte", -1),
        ("a collective of tomorrow", 5, 5, "Float", -1),
        ("allreduce", 1000, 1000, "Float3_e1m1", -1),
        ("allreduce", -5, 1000, "Float", -1),
        ("allreduce", "x", 1000, "Float", -1),
        ("allreduce", None, None, None, -1),
    ],
)
def test_message_bytes(collective: str, sent: object, received: object, dtype: str, expected: int) -> None:
    args = KernelArgs(
        collective=collective,
        in_elements=sent,
        out_elements=received,
        dtype=dtype,
        group_size=8,
        in_splits="[]",
    )
    assert message_bytes(args) == expected


@pytest.mark.parametrize(
    ("splits", "expected"),
    [("[4, 4]", 16), ([4, 4], 16), ("[3, 5]", -1), ("[4, 4, ...]", -1), ([4, "x"], -1)],
)
def test_all_to_all_with_splits(splits: object, expected: int) -> None:
    # Two peers, 8 elements of 4 bytes: 16 bytes to each, if cut evenly.
    args = KernelArgs(
        collective="all_to_allv", in_elements=8, out_elements=8, dtype="Float", group_size=2, in_splits=splits
    )
    assert message_bytes(args) == expected


def test_peers_of_sends_and_receives() -> None:
    rows = PayloadRows(Strings())
    rows.add(0, KernelArgs(collective="send", destination_rank=3, source_rank=1, group_name="2", rank=1))
    rows.add(5, KernelArgs(collective="recv", destination_rank=1, source_rank=0, group_name="2"))
    rows.add(6, KernelArgs(collective="allreduce", destination_rank=1, group_name="2"))
    rows.add(7, KernelArgs())  # an ordinary kernel
    table = rows.table()
    assert table.kernel.tolist() == [0, 5, 6]
    assert table.peer.tolist() == [3, 0, -1]
    assert table.rank.tolist() == [1, -1, -1]
