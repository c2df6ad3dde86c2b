"""What devices are called: one name each, the same in every part of the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.communication.calls import CallGroup
from perfdoc.analyzers.device.ranks import rank_labels
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.matching.collectives import members_of
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.traces import Device
from tests.analyzers.planted_ranks import Job
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import NcclPayload
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder


def device(ordinal: int, process: int, rank: int | None = None) -> Device:
    return Device(process=process, ordinal=ordinal, rank=rank)


def test_labels_say_no_more_than_it_takes() -> None:
    assert rank_labels([(0, device(0, 7, 3)), (1, device(0, 7, 4))]) == ["rank 3", "rank 4"]
    assert rank_labels([(0, device(4, -1)), (0, device(5, -1))]) == ["GPU 4", "GPU 5"]  # nobody's
    assert rank_labels([(0, device(0, 7)), (0, device(1, 7))]) == ["GPU 0, pid 7", "GPU 1, pid 7"]
    # One process with two devices; two processes of one rank; two files that say the same.
    assert rank_labels([(0, device(0, 7, 3)), (0, device(1, 7, 3))]) == ["rank 3, GPU 0", "rank 3, GPU 1"]
    assert rank_labels([(0, device(0, 7, 3)), (1, device(0, 8, 3)), (1, device(0, 9, 1))]) == [
        "rank 3, GPU 0, pid 7",
        "rank 3, GPU 0, pid 8",
        "rank 1",
    ]
    assert rank_labels([(0, device(0, 7)), (1, device(0, 7))]) == [
        "GPU 0, pid 7, input 0",
        "GPU 0, pid 7, input 1",
    ]
    assert rank_labels([]) == []
    # Of a merged file one process has kept its number, the others have none of the system's.
    merged = [(0, device(i, 7 + 100_000_000 * i)) for i in range(3)]
    assert rank_labels(merged) == ["GPU 0", "GPU 1", "GPU 2"]


def test_machines_tell_apart_what_is_alike_on_them() -> None:
    on = [replace(device(i % 2, 7), host=f"node{i // 2}") for i in range(4)]
    assert rank_labels(list(enumerate(on[:2]))) == ["GPU 0, pid 7", "GPU 1, pid 7"]
    assert rank_labels(list(enumerate(on)))[2:] == ["GPU 0, pid 7, node1", "GPU 1, pid 7, node1"]
    long = replace(on[0], host="a" * 10**6)
    assert len(rank_labels([(0, long), (1, long)])[1]) < 100
    # The 1 of GPU 11 is no GPU 1.
    assert rank_labels([(0, device(11, 7, 3)), (0, device(1, 7, 3))]) == ["rank 3, GPU 11", "rank 3, GPU 1"]


few = st.integers(0, 2)


@given(st.lists(st.tuples(few, few, few, st.none() | few), max_size=12))
def test_no_two_are_alike(rows: list[tuple[int, int, int, int | None]]) -> None:
    labels = rank_labels([(i, device(ordinal, process, rank)) for i, ordinal, process, rank in rows])
    assert len(set(labels)) == len(rows)
    for label, (_, _, _, rank) in zip(labels, rows, strict=True):
        assert label.startswith("GPU " if rank is None else f"rank {rank}")


def test_every_analysis_uses_the_label(tmp_path: Path) -> None:
    # Two files of one process id each, no ranks known; steps and collectives in both.
    captures = []
    for i in range(2):
        builder = TimelineBuilder(utc_origin_ns=10**18)
        process = builder.process(pid=77)
        thread, gpu = process.thread(), process.device()
        payload = NcclPayload(communicator=5, bytes=1024)
        for n in range(8):
            at = n * 1_000_000
            thread.range(f"perfdoc.step {n}", at, at + 900_000)
            gpu.kernel(GEMM, at + 1_000, at + 300_000, launch=(thread, at + 10, at + 20))
            thread.range("ncclAllReduce", at + 30, at + 60, domain="NCCL", payload=payload)
            gpu.kernel(ALL_REDUCE, at + 300_000 + i * 1_000, at + 400_000, launch=(thread, at + 40, at + 50))
        path = write_nsys_sqlite(builder.build(), tmp_path / f"{i}.sqlite", force=True)
        captures.append(measure_capture(path, WindowRequest()))
    found = diagnose(captures)
    labels = {r.label for r in found.ranks}
    assert labels == {"GPU 0, pid 77, input 0", "GPU 0, pid 77, input 1"}
    assert {c.name for c in found.analyses.skew.clocks} == labels
    assert {w.name for w in found.analyses.skew.waits} == labels
    assert found.analyses.host_jitter.worst_rank in labels


def numbered(job: Job, size: int, *, world: int | None, other: int = 0) -> list[tuple[int | None, str]]:
    """Members of captures without ranks that know their places in a communicator of so many ranks."""
    known = []
    for place, calls in enumerate(job.columns()):
        groups = [replace(calls.groups[0], communicator=9, own_in_group=place, size=size)]
        if other:
            groups.append(CallGroup(communicator=100 + place, description="", size=other, own_in_group=0))
        none = np.full(len(calls), -1)
        known.append(
            replace(
                calls, rank=None, rank_evidence="none", world_size=None, groups=tuple(groups), sequence=none
            )
        )
    members, _ = members_of(known, world)
    return [(m.rank, m.rank_evidence) for m in members]


def test_a_communicator_numbers_ranks_only_where_it_is_the_jobs() -> None:
    job = Job(ranks=4)
    for i in range(3):
        job.collective("dp", dict.fromkeys(range(4), 100_000 * i), 10_000)
    places = [(i, "communicator") for i in range(4)]
    unknown = [(None, "none")] * 4
    assert numbered(job, 4, world=4) == places
    assert numbered(job, 4, world=None) == places
    # Four of eight ranks: their places in a group of four are no ranks, those in one of eight are.
    assert numbered(job, 4, world=8) == unknown
    assert numbered(job, 8, world=8) == places
    # How large the job is, is not known: each is in a communicator with ranks that are not here.
    assert numbered(job, 4, world=None, other=2) == unknown
    assert numbered(job, 8, world=None) == unknown
    assert numbered(job, 4, world=None, other=1) == places
