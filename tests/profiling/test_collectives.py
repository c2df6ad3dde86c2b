from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfdoc.profiling.distributed.collective_name import parse_collective
from perfdoc.profiling.logs import CollectiveRecord, read_lines, write_collectives
from perfdoc.profiling.marks import parse_group_mark, parse_rank_mark
from perfdoc.profiling.vocabulary import COLLECTIVE_ISSUE, COLLECTIVE_WAIT
from tests.profiling.conftest import Launch

TENSOR = "TENSOR_MODEL_PARALLEL_GROUP"
DEFAULT = "default_pg"


Facts = tuple[str, str, int | None, int, int | None, int | None, str | None]


def expected(rank: int) -> list[Facts]:
    """(operation, group, bytes, sequence, sent bytes, peer, dimension) in the order of issue; sizes by hand.

    Tensors of 8 fp32 are 32 bytes. all_gather counts one rank's part, reduce_scatter one rank's output of 4
    fp32, all_to_all what goes to each of 2 peers. The tensor group used number 0 while ranges were off.
    """
    other = 1 - rank
    single = ("send", DEFAULT, 32, 0, None, 1, None) if rank == 0 else ("recv", DEFAULT, 32, 0, None, 0, None)
    # Rank 0 has sent to rank 1 once before, so the pair 0 -> 1 goes on with 1; 1 -> 0 begins.
    batch_send, batch_recv = (1, 0) if rank == 0 else (0, 1)
    return [
        ("all_reduce", TENSOR, 32, 1, None, None, None),
        ("all_reduce", TENSOR, 32, 2, None, None, None),
        ("all_gather", DEFAULT, 32, 0, None, None, None),
        ("all_gather", DEFAULT, 32, 1, None, None, None),
        ("reduce_scatter", DEFAULT, 16, 2, None, None, None),
        ("all_to_all", TENSOR, 16, 3, 32, None, None),
        ("all_to_all", DEFAULT, None, 3, 16, None, None),
        ("broadcast", DEFAULT, 32, 4, None, None, None),
        single,
        ("send", DEFAULT, 32, batch_send, None, other, "pp"),
        ("recv", DEFAULT, 32, batch_recv, None, other, "pp"),
        ("all_reduce", TENSOR, 96, 4, None, None, None),
        ("barrier", DEFAULT, 0, 5, None, None, None),
    ]


def facts(record: dict[str, Any]) -> tuple[Any, ...]:
    names = ("operation", "group", "bytes", "sequence", "sent_bytes", "peer", "dimension")
    return tuple(record[name] for name in names)


def test_two_gloo_ranks(two_ranks: Launch, tmp_path: Path) -> None:
    for rank, shown in enumerate(two_ranks("gloo_worker.py", str(tmp_path))):
        result = json.loads(shown)
        assert result["groups"] == [
            {"description": DEFAULT, "name": "0", "ranks": [0, 1], "backend": "gloo"},
            {"description": TENSOR, "name": "1", "ranks": [0, 1], "backend": "gloo"},
        ]
        records = result["records"]
        assert [facts(record) for record in records] == expected(rank)
        for record in records:
            assert record["issue_ns"] <= record["issued_ns"] <= record["wait_start_ns"]
            assert record["issue_ns"] <= record["done_ns"] <= record["wait_end_ns"]
        # Sends and receives report nothing; of the others the second was asynchronous, and the batch of two
        # all-reduces is waited for through its manager. All else is waited for at once.
        reported = {i for i, record in enumerate(records) if record["completion"] == "callback"}
        assert reported <= {1, 11}
        assert 1 in reported
        check_trace(tmp_path / f"rank{rank}.json", rank, records)


def check_trace(path: Path, rank: int, records: list[dict[str, Any]]) -> None:
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    marks = [event["name"] for event in events if parse_group_mark(event["name"])]
    assert marks == [
        "perfdoc.group group=default_pg pg=0 ranks=0-1",
        f"perfdoc.group group={TENSOR} pg=1 ranks=0-1",
    ]
    assert sum(parse_rank_mark(event["name"]) is not None for event in events) == 1
    for phase in (COLLECTIVE_ISSUE, COLLECTIVE_WAIT):
        rows = [
            (event, name)
            for event in sorted(events, key=lambda event: event["ts"])
            if (name := parse_collective(event["name"])) is not None and name.phase == phase
        ]
        named = [
            (n.operation, n.group, n.bytes, n.sequence, n.sent_bytes, n.peer, n.dimension) for _, n in rows
        ]
        again = [("all_reduce", TENSOR, 32, 2, None, None, None)] if phase == COLLECTIVE_WAIT else []
        assert sorted(named, key=str) == sorted(expected(rank) + again, key=str)
        if phase == COLLECTIVE_ISSUE:
            # The side file and the trace are on one clock: each issue lies in its range, to a millisecond.
            for (event, _), record in zip(rows, records, strict=True):
                issue_us = (record["issue_ns"] - trace["baseTimeNanoseconds"]) / 1e3
                assert event["ts"] - 1e3 <= issue_us <= event["ts"] + event["dur"] + 1e3


def test_side_file_comes_back(tmp_path: Path) -> None:
    record = CollectiveRecord(
        operation="all_reduce",
        group=TENSOR,
        group_name="1",
        bytes=32,
        sequence=3,
        issue_ns=1_795_224_036_982_888_780,
        issued_ns=1_795_224_036_982_890_000,
        completion="unknown",
    )
    path = tmp_path / "collectives" / "rank0.jsonl"
    write_collectives(path, [record])
    write_collectives(path, [record])
    assert list(read_lines(path, CollectiveRecord)) == [record, record]
