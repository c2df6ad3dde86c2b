"""Sends and receives of two ranks, matched with each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.profiling.marks import format_group_mark, format_rank_mark
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import calls_of_file
from tests.analyzers.planted_ranks import KERNELS
from tests.analyzers.test_matching import pairs
from tests.captures.events import Collective, NcclPayload
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu

NO_FACTS = JobFacts()


def test_sends_find_their_receives(tmp_path: Path) -> None:
    # A pipeline of ranks 4, 5, 6: 4 -> 5 twice, 5 -> 6 once, 6 -> 5 once. PyTorch names peers by global rank.
    sent = {4: [("send", 5), ("send", 5)], 5: [("recv", 4), ("send", 6), ("recv", 4), ("recv", 6)]}
    sent[6] = [("recv", 5), ("send", 5)]
    paths = []
    for rank, calls in sent.items():
        builder = TimelineBuilder()
        process = builder.process(pid=100 + rank, rank=rank)
        device = process.device()
        process.group("3", "PIPELINE_MODEL_PARALLEL_GROUP", (4, 5, 6))
        for i, (operation, peer) in enumerate(calls):
            sides = {"source_rank": peer} if operation == "recv" else {"destination_rank": peer}
            collective = Collective(operation=operation, group_name="3", ranks=(4, 5, 6), **sides)
            start = 1_000_000 * i + 1_000 * (i * i % 7)
            device.kernel(KERNELS["send_recv"], start, start + 500, stream=20, collective=collective)
        paths.append(write_kineto(builder.build(), tmp_path / f"r{rank}.json", process.pid))
    matches = match_collectives([c for p in paths for c in calls_of_file(p)], NO_FACTS)
    assert sorted(pairs(matches)) == [[(0, 0), (1, 0)], [(0, 1), (1, 2)], [(1, 1), (2, 0)], [(1, 3), (2, 1)]]
    assert {matches.operations[i] for i in matches.operation} == {"send_recv"}
    assert not matches.is_synchronising.any()


def exchanges(folder: Path, peers: dict[int, list[int]], *, marked: bool) -> list[CollectiveCalls]:
    """Each rank exchanges with these others in turn, in groups of a send and a receive that ncclGroupEnd
    launches. One communicator; without marks only two ranks need no more."""
    ranks: list[CollectiveCalls] = []
    for rank, others in peers.items():
        builder, thread, device = one_gpu(pid=100 + rank)
        if marked:
            thread.mark(format_rank_mark(rank, len(peers), "cuda"), 0)
            thread.mark(format_group_mark("PIPELINE_MODEL_PARALLEL_GROUP", tuple(peers), 0xA, name="1"), 1)
        for i, other in enumerate(others):
            at = 1_000_000 * i + 10_000 * (i * i % 5) + 100
            thread.range("ncclGroupStart", at, at + 10, domain="NCCL")
            payload = NcclPayload(communicator=0xA, bytes=64, peer=other)
            thread.range("ncclSend", at + 20, at + 30, domain="NCCL", payload=payload)
            thread.range("ncclRecv", at + 40, at + 50, domain="NCCL", payload=payload)
            thread.range("ncclGroupEnd", at + 60, at + 100, domain="NCCL")
            launch = (thread, at + 70, at + 80)
            device.kernel(KERNELS["send_recv"], at + 200, at + 5_000, stream=20, launch=launch)
        path = write_nsys_sqlite(builder.build(), folder / f"r{rank}.sqlite")
        ranks += [replace(c, rank=rank) for c in calls_of_file(path)]
    return ranks


def test_groups_of_sends_and_receives(tmp_path: Path) -> None:
    for name in ("pair", "three", "marked"):
        (tmp_path / name).mkdir()
    matches = match_collectives(
        exchanges(tmp_path / "pair", {0: [1] * 6, 1: [0] * 6}, marked=False), NO_FACTS
    )
    assert pairs(matches) == [[(0, i), (1, i)] for i in range(6)]
    # Among three the captures must tell which rank is which place in the communicator.
    among = {0: [1, 1], 1: [0, 2, 0, 2], 2: [1, 1]}
    matches = match_collectives(exchanges(tmp_path / "three", among, marked=False), NO_FACTS)
    assert matches.reason == "the peer of its sends and receives is unknown"
    matches = match_collectives(exchanges(tmp_path / "marked", among, marked=True), NO_FACTS)
    assert sorted(pairs(matches)) == [[(0, 0), (1, 0)], [(0, 1), (1, 2)], [(1, 1), (2, 0)], [(1, 3), (2, 1)]]
    assert {g.label for g in matches.groups if g.matched_by} == {
        "PIPELINE_MODEL_PARALLEL_GROUP [0,1,2] 0↔1",
        "PIPELINE_MODEL_PARALLEL_GROUP [0,1,2] 1↔2",
    }
