from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfdoc.profiling.distributed.calls import CALLS, Message, message_of


class Sized:
    """As much of a tensor as a message's size needs."""

    def __init__(self, numel: int, element_size: int = 4, *, is_sparse: bool = False) -> None:
        self.nbytes, self.is_sparse = numel * element_size, is_sparse


def sizes(method: str, *args: Any, ranks: int = 2, **kwargs: Any) -> tuple[int | None, int | None]:
    message = message_of(CALLS[method], (args, kwargs), ranks)
    return message.bytes, message.sent_bytes


EIGHT = Sized(8)  # 32 bytes.
SIXTEEN = Sized(16)  # 64 bytes.


@pytest.mark.parametrize("splits", [([1, 3], [2, 2]), (np.array([1, 3]), np.array([2, 2])), (None, (1, 3))])
def test_uneven_all_to_all_has_no_size_per_peer(splits: tuple[Any, Any]) -> None:
    assert sizes("all_to_all_single", SIXTEEN, EIGHT, *splits) == (None, 32)


@pytest.mark.parametrize("splits", [(None, None), ([], []), (np.array([4, 4]), np.array([4, 4]))])
def test_even_all_to_all_counts_what_goes_to_each_peer(splits: tuple[Any, Any]) -> None:
    assert sizes("all_to_all_single", EIGHT, EIGHT, *splits) == (16, 32)
    assert sizes("alltoall_base", EIGHT, EIGHT, *splits, ranks=8) == (4, 32)


def test_sizes_by_nccls_count() -> None:
    assert sizes("allreduce", [EIGHT], object()) == (32, None)
    assert sizes("allreduce_coalesced", [EIGHT, SIXTEEN]) == (96, None)
    assert sizes("allgather", [[EIGHT] * 4], [EIGHT], ranks=4) == (32, None)
    assert sizes("_allgather_base", SIXTEEN, EIGHT) == (32, None)
    assert sizes("allgather_into_tensor_coalesced", [SIXTEEN, SIXTEEN], [EIGHT, EIGHT]) == (64, None)
    assert sizes("reduce_scatter", [EIGHT], [[EIGHT, EIGHT]]) == (32, None)
    assert sizes("_reduce_scatter_base", EIGHT, SIXTEEN) == (32, None)
    assert sizes("reduce_scatter_single", EIGHT, SIXTEEN) == (32, None)
    assert sizes("alltoall", [EIGHT, EIGHT], [EIGHT, EIGHT]) == (32, 64)
    assert sizes("alltoall", [EIGHT, SIXTEEN], [EIGHT, EIGHT]) == (None, 64)
    assert sizes("gather", [[EIGHT, EIGHT]], [EIGHT]) == (32, None)
    assert sizes("scatter", [EIGHT], [[EIGHT, EIGHT]]) == (32, None)
    assert sizes("send", [EIGHT], 1, 0) == (32, None)
    assert sizes("barrier") == (0, None)
    assert sizes("allreduce", tensors=[Sized(8, 2)]) == (16, None)


def test_what_cannot_be_sized_is_unknown_and_no_error() -> None:
    assert sizes("allreduce", [Sized(8, is_sparse=True)]) == (None, None)
    assert sizes("allreduce") == (None, None)
    assert message_of(CALLS["allreduce"], (("no tensor",), {}), 2) == Message(bytes=None)
    assert sizes("all_to_all_single", EIGHT, EIGHT, 7, 7) == (None, None)
    assert sizes("all_to_all_single", EIGHT, EIGHT, ranks=3) == (None, 32)
