"""Columns of a device's communication that ranks are compared by: steps, and what lies in the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.profiling.marks import format_group_mark, format_rank_mark
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import view_of
from tests.analyzers.planted_ranks import KERNELS
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import NcclPayload
from tests.captures.timeline import one_gpu


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("perfdoc.step 7", "perfdoc.step 8"), [-1, 7, 7, 8, -1]),
        # Numbers that begin again with every epoch name no step.
        (("perfdoc.step 7", "perfdoc.step 7"), [-1] * 5),
        (("train step", "train step"), [-1] * 5),
    ],
)
def test_a_call_is_of_the_step_that_launched_it(
    tmp_path: Path, names: tuple[str, str], steps: list[int]
) -> None:
    """Step ranges [100, 200) and [200, 300) on the host; the device is 1000 behind. One call is launched
    before them, and one after them that runs while the device is still busy with the last step."""
    builder, thread, device = one_gpu()
    for start, name in zip((100, 200), names, strict=True):
        thread.range(name, start, start + 100)
    for launched in (50, 100, 199, 200, 310):
        device.kernel(
            ALL_REDUCE, 1000 + launched, 1001 + launched, stream=20, launch=(thread, launched, launched)
        )
    device.kernel(GEMM, 1290, 1400, launch=(thread, 290, 295))
    calls = collective_calls(view_of(builder, tmp_path))
    assert calls.step.tolist() == steps
    # The window begins with what the first step launched, and ends with the last of the second.
    assert calls.in_window.tolist() == [False, True, True, True, True]


def test_the_other_side_of_a_send_is_a_rank_of_the_job(tmp_path: Path) -> None:
    """NCCL counts ranks within the communicator, whose members a mark of the trainer lists: 1 is rank 6. That
    holds for a call by itself, and for a receive in a group."""
    builder, thread, device = one_gpu()
    thread.mark(format_rank_mark(4, 8, "cuda"), 1)
    thread.mark(format_group_mark("PIPELINE_MODEL_PARALLEL_GROUP", (4, 6), 0xA, name="1"), 2)
    payload = NcclPayload(communicator=0xA, bytes=64, peer=1)
    thread.range("ncclSend", 10, 50, domain="NCCL", payload=payload)
    device.kernel(KERNELS["send_recv"], 1000, 1100, stream=20, launch=(thread, 20, 30))
    thread.range("ncclGroupStart", 100, 102, domain="NCCL")
    thread.range("ncclRecv", 110, 120, domain="NCCL", payload=payload)
    thread.range("ncclGroupEnd", 130, 190, domain="NCCL")
    device.kernel(KERNELS["send_recv"], 1200, 1300, stream=20, launch=(thread, 140, 150))
    calls = collective_calls(view_of(builder, tmp_path, JobFacts(world_size=8)))
    assert (calls.rank, calls.world_size, calls.peer.tolist()) == (4, 8, [6, 6])
    assert [g.ranks for g in calls.groups] == [(4, 6)]
