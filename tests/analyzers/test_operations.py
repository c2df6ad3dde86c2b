"""Operations of one device: laid by hand, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.pipeline.halves import as_in_other_steps
from perfdoc.analyzers.pipeline.operations import COMPUTE, MESSAGE, WAIT, RankOperations, rank_operations
from tests.analyzers.device_views import view_of
from tests.analyzers.test_pipeline_rank import MARK, SEND_RECV, group
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import NcclPayload
from tests.captures.timeline import TimelineBuilder


def operations(folder: Path, *, second: int = 0) -> RankOperations:
    """Two steps on stream 7, messages on stream 21; the second begins at 2 ms, its first pass so much longer.

    In us: a pass [100, 200), a send [200, 210), a pass [210.5, 350) in the middle of which a message is asked
    for, which is under way from 300 until 600; then two kinds of kernels, [600, 700) and [701, 900).
    """
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark("perfdoc.rank 0 world=2 device=cuda", 1)
    host.mark(MARK, 1)
    for step, at in enumerate((0, 2_000_000)):
        host.range(f"perfdoc.step {step}", at + 50, at + 990)
        device.kernel(GEMM, at + 100_000 - second * step, at + 200_000, launch=(host, at + 100, at + 110))
        sent = group(host, at + 200, "ncclSend")
        device.kernel(SEND_RECV, at + 200_000, at + 210_000, stream=21, launch=sent)
        device.kernel(GEMM, at + 210_500, at + 300_000, launch=(host, at + 300, at + 310))
        both = group(host, at + 400, "ncclSend", "ncclRecv")
        device.kernel(GEMM, at + 300_000, at + 350_000, launch=(host, at + 470, at + 480))
        device.kernel(SEND_RECV, at + 300_000, at + 600_000, stream=21, launch=both)
        device.kernel(GEMM, at + 600_000, at + 700_000, launch=(host, at + 500, at + 510))
        device.kernel(f"{GEMM}_backward", at + 701_000, at + 900_000, launch=(host, at + 600, at + 610))
    view = view_of(builder, folder)
    return rank_operations(view, collective_calls(view))


def test_work_is_cut_where_messages_begin_and_where_it_waits_for_them(tmp_path: Path) -> None:
    found = operations(tmp_path, second=50_000)
    kinds = [COMPUTE, MESSAGE, COMPUTE, MESSAGE, COMPUTE, WAIT, COMPUTE]
    assert (found.reason, found.kind.tolist()) == ("", kinds)
    assert found.step_names == ("perfdoc.step 0", "perfdoc.step 1")
    # The second message begins beside the second pass and is waited for behind it.
    assert found.of.tolist() == [-1, -1, -1, -1, -1, 3, -1]
    assert found.is_awaited.tolist() == [True, True, True, False, True, True, True]
    first, second = found.duration_ns.T.tolist()
    assert first == [100_000, 10_000, 89_500, 300_000, 50_000, 0, 300_000]
    assert second == [150_000, 10_000, 89_500, 300_000, 50_000, 0, 300_000]
    # A gap of 1 us in the last one, in which other kernels follow after 101 us.
    assert found.busy_ns[:, 0].tolist() == [100_000, 0, 89_500, 0, 50_000, 0, 299_000]
    assert found.split_ns[:, 0].tolist() == [-1, -1, -1, -1, -1, -1, 101_000]
    before, behind = found.sides[-1]
    assert before == found.sides[0][0] == found.sides[2][0]
    assert behind not in ((), before)


def test_a_step_with_other_messages_is_left_out(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark("perfdoc.rank 0 world=2 device=cuda", 1)
    host.mark(MARK, 1)
    for step, messages in enumerate((1, 2, 1)):
        at = 10_000 * step
        host.range(f"perfdoc.step {step}", at + 50, at + 990)
        for number in range(messages):
            begin = at + 1000 + 1000 * number
            device.kernel(
                GEMM, begin, begin + 500, launch=(host, at + 100 + 200 * number, at + 110 + 200 * number)
            )
            sent = group(host, at + 200 + 200 * number, "ncclSend")
            device.kernel(SEND_RECV, begin + 500, begin + 600, stream=21, launch=sent)
    view = view_of(builder, tmp_path)
    found = rank_operations(view, collective_calls(view))
    assert (found.step_names, found.left_out) == (("perfdoc.step 0", "perfdoc.step 2"), 1)
    assert found.kind.tolist() == [COMPUTE, MESSAGE]


def test_what_only_communication_fills_inside_a_pass_is_told_apart(tmp_path: Path) -> None:
    # In us: work [100, 200), an all-reduce of the tensor group [180, 240), work [240, 300), a message.
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark("perfdoc.rank 0 world=2 device=cuda", 1)
    host.mark(MARK, 1)
    host.mark(MARK.replace("PIPELINE", "TENSOR").replace("pg=9", "pg=8").replace("aa", "bb"), 2)
    for step in range(2):
        at = 1_000_000 * step
        host.range(f"perfdoc.step {step}", at + 50, at + 990)
        device.kernel(GEMM, at + 100_000, at + 200_000, launch=(host, at + 100, at + 110))
        payload = NcclPayload(communicator=0xBB, bytes=64)
        host.range("ncclAllReduce", at + 120, at + 149, domain="NCCL", payload=payload)
        launch = (host, at + 125, at + 140)
        device.kernel(ALL_REDUCE, at + 180_000, at + 240_000, stream=20, launch=launch)
        device.kernel(GEMM, at + 240_000, at + 300_000, launch=(host, at + 160, at + 170))
        device.kernel(
            SEND_RECV, at + 300_000, at + 310_000, stream=21, launch=group(host, at + 200, "ncclSend")
        )
    view = view_of(builder, tmp_path)
    found = rank_operations(view, collective_calls(view))
    assert found.kind.tolist() == [COMPUTE, MESSAGE]
    assert found.busy_ns[0].tolist() == [200_000, 200_000]
    assert found.shared_ns[0].tolist() == [40_000, 40_000]


def test_a_change_that_one_step_does_not_show_is_where_the_others_have_it() -> None:
    """Only with as many kernels there, and one change in all others: stretch 0 of three steps, and 1."""
    stretch, kernels = np.array([0, 1, 0, 1, 0, 1]), np.full(6, 8)
    changes = np.array([3, 2, 0, 4, 3, 0])
    assert as_in_other_steps(changes, kernels, stretch).tolist() == [3, 2, 3, 4, 3, 0]
    kernels[4] = 7
    assert as_in_other_steps(changes, kernels, stretch).tolist() == changes.tolist()


@pytest.mark.parametrize(
    ("seen", "said"), [([5, 0, 0], [5, 0, 0]), ([5, 0], [5, 5]), ([5, 0, 5, 6], [5, 0, 5, 6])]
)
def test_it_is_seen_in_half_of_the_steps_at_least_and_at_one_kernel(seen: list[int], said: list[int]) -> None:
    steps = len(seen)
    assert as_in_other_steps(np.array(seen), np.full(steps, 9), np.zeros(steps, int)).tolist() == said
