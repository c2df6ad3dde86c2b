from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.cpu_rank import cpu_activity
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_trace
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import trace_of
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

DP = "group=DATA_PARALLEL_GROUP pg=1 bytes=4096 seq=0"
SPANS = [(100, 250, True), (260, 400, True), (450, 700, False), (460, 600, True), (750, 800, False)]
TP = "group=TENSOR_MODEL_PARALLEL_GROUP pg=2 bytes=64 seq=0"


def planted(*, operators: bool, mark: str | None = None) -> TimelineBuilder:
    """One step [0, 1000) of rank 3 on the CPU, then a second one, empty, [1000, 1100).

    data [0, 100), of which an operator runs [20, 60); forward [100, 400), with operators [100, 250) and
    [260, 400) where the capture has them; gc [410, 440); an all-reduce of data parallelism is handed over
    [450, 460), runs until 700 on the backend's thread and is waited for [600, 700); backward [460, 600) with
    an operator throughout; a tensor-parallel all-reduce [750, 800) under nothing; the rest is Python.
    """
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 3 world=8 device=cpu", 0, 0)
    if mark is not None:
        main.range(mark, 0, 0)
    main.range("perfdoc.step 0", 0, 1000)
    main.range("perfdoc.step 1", 1000, 1100)
    main.range("perfdoc.data", 0, 100)
    main.range("perfdoc.forward", 100, 400)
    main.range("perfdoc.gc generation=2", 410, 440)
    main.range(f"perfdoc.comm.issue all_reduce {DP}", 450, 460)
    main.range("perfdoc.backward", 460, 600)
    main.range(f"perfdoc.comm.wait all_reduce {DP}", 600, 700)
    kind = "push_pop" if operators else "start_end"  # Kineto has one kind only
    backend.range(f"perfdoc.comm.run all_reduce {DP}", 450, 700, kind=kind)
    backend.range(f"perfdoc.comm.run all_reduce {TP}", 750, 800, kind=kind)
    if operators:
        for name, start, end in (
            ("aten::stack", 20, 60),
            ("aten::mm", 100, 250),
            ("aten::mm", 260, 400),
            ("aten::mm", 460, 600),
            ("c10d::allreduce_", 452, 458),
        ):
            process.operator(main, name, start, end)
    return builder


def test_with_operators(tmp_path: Path) -> None:
    path = write_kineto(planted(operators=True).build(), tmp_path / "x.json", 77)
    ((rank,), notes) = measure_trace(read_kineto(path), WindowRequest())
    assert (rank.device.rank, rank.device.rank_evidence, rank.device.gpu_name) == (3, "mark", "CPU")
    assert [(s.start_ns, s.end_ns) for s in rank.window.step_list] == [(0, 1000), (1000, 1100)]
    trace = read_kineto(path)
    activity = cpu_activity(with_marked_ranks(trace, marked_ranks(trace)), 0)
    assert activity is not None
    columns = (activity[0].start_ns, activity[0].end_ns, activity[0].is_compute)
    # Operators outside of waits, and collectives from their issue on.
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == SPANS
    # compute 150 + 140 + 140; dp exposed outside of [460, 600): [450, 460) and [600, 700) = 110; tp 50;
    # data 100, its own operator included; gc 30; host the remaining 1100 - 430 - 160 - 130 = 380.
    assert rank.ledger.compute == 430
    assert {k: v for k, v in rank.ledger.exposed_comm.by_name.items() if v} == {"dp": 110, "tp": 50}
    assert {k: v for k, v in rank.ledger.idle.by_name.items() if v} == {"data": 100, "gc": 30, "host": 380}
    rows = {
        c.dimension: (c.collective, c.transport, c.bytes, c.hidden_ns, c.evidence) for c in rank.communication
    }
    assert rows == {
        "dp": ("all_reduce", "gloo", 4096, 140, "group_description"),
        "tp": ("all_reduce", "gloo", 64, 0, "group_description"),
    }
    assert not notes


def test_without_operators_the_vocabulary_says_what_computes(tmp_path: Path) -> None:
    ((rank,), _) = measure_trace(trace_of(planted(operators=False), tmp_path), WindowRequest())
    # forward 300 + backward 140
    assert rank.ledger.compute == 440
    assert {k: v for k, v in rank.ledger.exposed_comm.by_name.items() if v} == {"dp": 110, "tp": 50}
    assert {k: v for k, v in rank.ledger.idle.by_name.items() if v} == {"data": 100, "gc": 30, "host": 370}


def test_a_group_of_one_rank_communicates_with_nobody(tmp_path: Path) -> None:
    """megatron-core reduces over tensor-parallel groups of one rank too: in a job with TP 1 that is no TP."""
    for ranks, left in (("3", {"dp": 110}), ("3-4", {"dp": 110, "tp": 50})):
        mark = f"perfdoc.group group=TENSOR_MODEL_PARALLEL_GROUP pg=2 ranks={ranks}"
        builder = planted(operators=True, mark=mark)
        path = write_kineto(builder.build(), tmp_path / f"{ranks}.json", 77)
        ((rank,), _) = measure_trace(read_kineto(path), WindowRequest())
        assert {k: v for k, v in rank.ledger.exposed_comm.by_name.items() if v} == left
        # What the call took is the host's: 380, or with [750, 800) 430.
        assert rank.ledger.idle.host == 540 - sum(left.values())
        assert [c.dimension for c in rank.communication] == list(left)
        # What other ranks are matched with, and excerpts draw, is the same communication.
        assert {DIMENSIONS[d] for d in rank.calls.dimension.tolist()} == set(left)


def test_the_mark_of_another_ranks_group_does_not_speak_for_an_own_one(tmp_path: Path) -> None:
    """Names of groups are unique within a process only: rank 5 alone in its `2`, rank 3 in a larger one."""
    mark = "perfdoc.group group=TENSOR_MODEL_PARALLEL_GROUP pg=2 ranks=5"
    path = write_kineto(planted(operators=True, mark=mark).build(), tmp_path / "rank3.json", 77)
    ((rank,), _) = measure_trace(read_kineto(path), WindowRequest())
    assert rank.ledger.exposed_comm.tp == 50


def test_marks_name_the_rank_of_a_gpu_too(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    process.thread().mark("perfdoc.rank 5 world=8 device=cuda", 0)
    process.device().kernel("gemm", 10, 20)
    ((rank,), _) = measure_trace(trace_of(builder, tmp_path), WindowRequest())
    assert (rank.device.rank, rank.device.rank_evidence) == (5, "mark")


def test_collectives_without_completions_count_to_the_end_of_their_wait(tmp_path: Path) -> None:
    # Handed over [100, 110), computed beside to 300, waited for [300, 450): exposed [100, 110) and 150 more.
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main = process.thread(tid=77)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    main.range("perfdoc.step 0", 0, 500)
    main.range(f"perfdoc.comm.issue all_reduce {DP}", 100, 110)
    main.range(f"perfdoc.comm.wait all_reduce {DP}", 300, 450)
    process.operator(main, "aten::mm", 110, 300)
    path = write_kineto(builder.build(), tmp_path / "x.json", 77)
    ((rank,), notes) = measure_trace(read_kineto(path), WindowRequest())
    assert (rank.ledger.compute, rank.ledger.exposed_comm.dp) == (190, 160)
    assert [(c.count, c.total_ns) for c in rank.communication] == [(1, 350)]
    assert [n.code for n in notes] == ["completions-missing"]
