"""One device's part in a pipeline, and two CPU ranks together: laid by hand, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.job import measure_pipeline
from perfdoc.analyzers.pipeline.rank import PipelineRank, pipeline_rank
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import views_of_file
from tests.analyzers.pipeline_ranks import pipeline_ranks
from tests.analyzers.tiny import GEMM
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.process import ThreadBuilder
from tests.captures.timeline import TimelineBuilder

SEND_RECV = "ncclDevKernel_SendRecv"
MARK = "perfdoc.group group=PIPELINE_MODEL_PARALLEL_GROUP pg=9 ranks=0-1 communicator=0x00000000000000aa"
COMMUNICATOR = 0xAA


def group(thread: ThreadBuilder, at: int, *calls: str) -> tuple[ThreadBuilder, int, int]:
    """A group of ncclSend and ncclRecv with rank 1; returns the launch that its end makes."""
    thread.range("ncclGroupStart", at, at + 2, domain="NCCL")
    for number, call in enumerate(calls):
        payload = NcclPayload(communicator=COMMUNICATOR, bytes=64, peer=1)
        thread.range(call, at + 5 * number + 3, at + 5 * number + 7, domain="NCCL", payload=payload)
    thread.range("ncclGroupEnd", at + 30, at + 49, domain="NCCL")
    return thread, at + 35, at + 45


OURS = ("perfdoc.forward", "perfdoc.backward")


def first_stage(
    folder: Path, *, names: tuple[str, str] | None = OURS, evaluates: bool = False
) -> PipelineRank:
    """Stage 0 of 2 with two micro-batches, on stream 7; messages on stream 21.

    forward 0 [1000, 2000), a gap of 10, send [2010, 2100), a gap of 5, forward 1 [2105, 3000); a kernel that
    sends and receives [3000, 6000), beside it compute until 3500; backward 0 [6000, 7000); a receive
    [6500, 7600) that was posted beside it; backward 1 [7600, 8600) after nothing; a send [8000, 8500) that
    backward 1 hides; at 12000 the optimizer. evaluates: whether a second step follows that has no passes.
    """
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark("perfdoc.rank 0 world=2 device=cuda", 1)
    host.mark(MARK, 1)
    host.range("perfdoc.step 0", 50, 990)
    if names is not None:
        for number, (way, at) in enumerate(((0, 90), (0, 290), (1, 490), (1, 690))):
            host.range(names[way], at, at + 60)
            if way == 0:
                host.range(f"perfdoc.micro_batch {number}", at - 5, at + 65)
    device.kernel(GEMM, 1000, 2000, launch=(host, 100, 110))
    device.kernel(SEND_RECV, 2010, 2100, stream=21, launch=group(host, 200, "ncclSend"))
    device.kernel(GEMM, 2105, 3000, launch=(host, 300, 310))
    device.kernel(GEMM, 2500, 3500, stream=8, launch=(host, 320, 330))
    device.kernel(SEND_RECV, 3000, 6000, stream=21, launch=group(host, 400, "ncclSend", "ncclRecv"))
    device.kernel(GEMM, 6000, 7000, launch=(host, 500, 510))
    device.kernel(SEND_RECV, 6500, 7600, stream=21, launch=group(host, 600, "ncclRecv"))
    device.kernel(GEMM, 7600, 8600, launch=(host, 700, 710))
    device.kernel(SEND_RECV, 8000, 8500, stream=21, launch=group(host, 800, "ncclSend"))
    device.kernel(GEMM, 12000, 13000, launch=(host, 900, 910))
    if evaluates:
        host.range("perfdoc.step 1", 990, 1090)
        device.kernel(GEMM, 14000, 15000, launch=(host, 1000, 1010))
    path = write_nsys_sqlite(builder.build(), folder / "x.sqlite", force=True)
    (rank,) = pipeline_ranks([path])
    return rank


def test_messages_and_what_the_device_waited_for_them(tmp_path: Path) -> None:
    rank = first_stage(tmp_path)
    m = rank.messages
    assert m.start_ns.tolist() == [2010, 3000, 6500, 8000]
    assert m.end_ns.tolist() == [2100, 6000, 7600, 8500]
    # Nothing else ran from the send's start on; from 3500; from 7000; never.
    assert m.wait_ns.tolist() == [2010, 3500, 7000, 8500]
    assert m.gap_before_ns.tolist() == [10, 0, 0, 0]
    assert m.gap_after_ns.tolist() == [5, 0, 0, 0]
    assert m.bytes.tolist() == [64, 128, 64, 64]
    assert m.part_row.tolist() == [0, 1, 1, 2, 3]
    assert m.part_sends.tolist() == [True, True, False, False, True]
    assert set(m.part_peer.tolist()) == {1}
    assert [m.channels[i] for i in m.part_channel.tolist()] == [COMMUNICATOR] * 5
    assert rank.message_step.tolist() == [0, 0, 0, 0]


def test_passes_and_idle_time_of_a_step(tmp_path: Path) -> None:
    rank = first_stage(tmp_path)
    assert (rank.state, rank.rank, rank.group, rank.group_source) == ("measured", 0, (0, 1), "group marks")
    passes = rank.passes
    assert passes.is_forward.tolist() == [True, True, False, False]
    assert passes.micro_batch.tolist() == [0, 1, -1, -1]
    assert passes.start_ns.tolist() == [1000, 2105, 6000, 7600]
    # Forward 1 launched work on stream 8 too, which ran until 3500.
    assert passes.end_ns.tolist() == [2000, 3500, 7000, 8600]
    assert (rank.phase_start_ns.tolist(), rank.phase_end_ns.tolist()) == ([1000], [8600])
    # 90 and its gaps of 15; 3500 to 6000; 7000 to 7600.
    assert rank.idle_ns.tolist() == [90 + 15 + 2500 + 600]
    assert rank.compute_ns.tolist() == [1000 + 895 + 500 + 1000 + 1000]
    assert (rank.outside.start_ns.tolist(), rank.outside.end_ns.tolist()) == ([12000], [13000])


def test_a_step_without_passes_is_none_of_the_pipelines(tmp_path: Path) -> None:
    rank, alone = first_stage(tmp_path, evaluates=True), first_stage(tmp_path)
    assert (rank.state, rank.step_names) == ("measured", ("perfdoc.step 0", "perfdoc.step 1"))
    assert (rank.phase_start_ns.tolist(), rank.phase_end_ns.tolist()) == ([1000, -1], [8600, -1])
    assert rank.compute_ns.tolist() == [*alone.compute_ns.tolist(), 0]
    assert rank.idle_ns.tolist() == [*alone.idle_ns.tolist(), 0]
    facts = JobFacts(pp=2, vpp=1, micro_batches=2)
    found, without = (measure_pipeline([r], facts) for r in (rank, alone))
    assert (found.steps, found.idle_ns, found.stages) == (1, without.idle_ns, without.stages)


@pytest.mark.parametrize(
    "names",
    [
        ("megatron.core.pipeline_parallel.schedules.forward_step", "backward_step"),
        ("forward-compute", "backward-compute"),
    ],
)
def test_passes_by_megatrons_names(tmp_path: Path, names: tuple[str, str]) -> None:
    rank, ours = first_stage(tmp_path / "a", names=names), first_stage(tmp_path / "b")
    for column in ("step", "is_forward", "start_ns", "end_ns"):
        assert np.array_equal(getattr(rank.passes, column), getattr(ours.passes, column))


def test_one_rank_alone(tmp_path: Path) -> None:
    rank = first_stage(tmp_path)
    found = measure_pipeline([rank], JobFacts(pp=2, vpp=1, micro_batches=2))
    (row,) = found.stages
    # The window of 7600 is its own but for 3205: 4395, and half of that, 2197, would be a perfect bubble.
    # Messages of 64 bytes take 90 where nobody waits, so 90 of the first and 90 of the wait of 600 are
    # transfer. The one of 128 bytes is alone of its size: all its 2500 count. With gaps of 15, 510 are left.
    assert (row.window_ns, row.own_ns, row.idle_ns) == (7600, 4395, 3205)
    assert (row.transfer_ns, row.handover_ns, row.bubble_ns, row.late_peer_ns) == (2680, 15, 510, 0)
    assert (row.stage, row.role, row.forward_ns, row.backward_ns) == (0, "embedding", 1197, 1000)


def test_without_ranges_messages_tell_where_a_stage_begins_and_ends(tmp_path: Path) -> None:
    rank = first_stage(tmp_path, names=None)
    # The last message only sends, so work ends before it: the compute that it leaves at 8000 runs to 8600.
    assert (rank.phase_source, len(rank.passes)) == ("messages", 0)
    assert (rank.phase_start_ns.tolist(), rank.phase_end_ns.tolist()) == ([1000], [8600])
    assert rank.idle_ns.tolist() == [3205]
    found = measure_pipeline([rank], JobFacts(pp=2, vpp=1, micro_batches=2))
    assert (found.stages[0].stage, found.stages[0].forward_ns) == (0, None)


def test_host_time_around_a_message_is_no_handover(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=0)
    host, device = process.thread(), process.device()
    host.mark(MARK, 1)
    host.range("perfdoc.step 0", 50, 9000)
    device.kernel(GEMM, 1000, 2000, launch=(host, 100, 110))
    # Launched at 2035 to 2045 by a host that came late: of the gap [2000, 2060) the last 15 are the device's.
    device.kernel(SEND_RECV, 2060, 2100, stream=21, launch=group(host, 2000, "ncclSend"))
    # Two kernels of one group: nothing tells which of the messages is in which.
    both = group(host, 2150, "ncclSend", "ncclRecv")
    device.kernel(SEND_RECV, 2500, 2600, stream=21, launch=both)
    device.kernel(SEND_RECV, 2500, 2650, stream=22, launch=(host, both[1] + 1, both[2] - 1))
    device.kernel(GEMM, 40_000, 41_000, launch=(host, 2300, 2310))
    (rank,) = pipeline_ranks([write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")])
    m = rank.messages
    # [2100, 2500) is short and was launched at 2195: 305 of it. [2650, 40000) is too long for a launch.
    assert m.gap_before_ns.tolist() == [15, 2500 - both[2], 2500 - both[2] + 1]
    assert m.gap_after_ns.tolist() == [0, 0, 0]
    assert m.part_row.tolist() == [0]


def test_pytorch_says_the_other_side_on_the_kernel(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(pid=70, rank=4)
    process.group("9", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 4))
    host, device = process.thread(), process.device()
    host.range("perfdoc.step 0", 50_000, 900_000)
    for operation, start, sides in (
        ("recv", 1_000_000, {"source_rank": 0}),
        ("send", 3_000_000, {"destination_rank": 0}),
    ):
        device.kernel(
            SEND_RECV,
            start,
            start + 500_000,
            stream=21,
            launch=(host, start // 10, start // 10 + 5_000),
            collective=Collective(
                operation=operation,
                group_name="9",
                group_description="PIPELINE_MODEL_PARALLEL_GROUP",
                ranks=(0, 4),
                dtype="BFloat16",
                in_elements=512,
                out_elements=512,
                **sides,
            ),
        )
    device.kernel(GEMM, 1_500_000, 3_000_000, launch=(host, 120_000, 125_000))
    (rank,) = pipeline_ranks([write_kineto(builder.build(), tmp_path / "x.json", 70)])
    m = rank.messages
    assert (rank.rank, rank.group, rank.group_source) == (4, (0, 4), "process groups of the capture")
    assert m.part_sends.tolist() == [False, True]
    assert m.part_peer.tolist() == [0, 0]
    assert m.bytes.tolist() == [1024, 1024]
    # The first message only receives, the last only sends: the kernel between them is the stage's work.
    assert rank.phase_start_ns.tolist() == m.end_ns[:1].tolist()
    assert rank.phase_end_ns.tolist() == m.start_ns[1:].tolist()


def cpu_ranks(folder: Path) -> Path:
    """One micro-batch through two stages on the CPU, as Nsight sees it; both processes in one capture.

    Rank 0: forward [100, 1100), send until 1300, receive until 3300, backward [3300, 5300).
    Rank 1: receive [50, 1250), forward [1250, 2250), backward [2250, 3250), send until 3290.
    """
    builder = TimelineBuilder()
    facts = "group=PIPELINE_MODEL_PARALLEL_GROUP pg=7 bytes=64 seq=0"
    for rank, ranges in enumerate(
        (
            (("forward", 100, 1100), ("send", 1100, 1300), ("recv", 1300, 3300), ("backward", 3300, 5300)),
            (("recv", 50, 1250), ("forward", 1250, 2250), ("backward", 2250, 3250), ("send", 3250, 3290)),
        )
    ):
        thread = builder.process(pid=90 + rank).thread()
        thread.mark(f"perfdoc.rank {rank} world=2 device=cpu", 1)
        thread.mark("perfdoc.group group=PIPELINE_MODEL_PARALLEL_GROUP pg=7 ranks=0-1", 1)
        thread.range("perfdoc.step 0", 20, 6000)
        for name, start, end in ranges:
            if name in ("send", "recv"):
                text = f"perfdoc.comm.run {name} {facts} peer={1 - rank}"
                thread.range(text, start, end, kind="start_end")
            else:
                thread.range(f"perfdoc.{name}", start, end)
    return write_nsys_sqlite(builder.build(), folder / "cpu.sqlite")


def test_two_stages_on_the_cpu(tmp_path: Path) -> None:
    ranks = [pipeline_rank(view) for view in views_of_file(cpu_ranks(tmp_path))]
    assert [r.messages.part_sends.tolist() for r in ranks] == [[True, False], [False, True]]
    found = measure_pipeline(ranks, JobFacts(pp=2, vpp=1, micro_batches=1))
    # The window is [100, 5300). Rank 0 waits for its messages, 200 + 2000; rank 1 until 1250 and after 3250.
    assert (found.state, found.scope, found.window_ns, found.matched_frac) == ("measured", "job", 10_400, 1.0)
    first, second = found.stages
    assert (first.own_ns, first.idle_ns, second.own_ns, second.idle_ns) == (3000, 2200, 2000, 3200)
    # The path: backward on rank 0 to 3300; of its receive the part after rank 1 began to send at 3250; rank 1
    # to 1250; of its receive the part after rank 0 began to send at 1100; forward on rank 0.
    assert (first.path_ns, second.path_ns) == (3000, 2000)
    assert (first.transfer_ns, second.transfer_ns) == (200, 200)
    # The bubble of one micro-batch through two stages is all of the mean own time, 2500; rank 0 idles less.
    assert (first.bubble_ns, first.late_peer_ns) == (2000, 0)
    assert (second.bubble_ns, second.late_peer_ns) == (2500, 500)
    assert (found.slowest_rank, found.slowest_over_mean) == (0, pytest.approx(1.2))
