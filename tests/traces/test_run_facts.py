from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.profiling.logs import CollectiveRecord, write_collectives
from perfdoc.traces import TraceError
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

UTC = 1_750_000_000_000_000_000


def run_directory(folder: Path, records: list[CollectiveRecord] | None) -> Path:
    """A CPU rank with one operator [100, 400) in one step [0, 1000), and its side file."""
    builder = TimelineBuilder(utc_origin_ns=UTC)
    process = builder.process(pid=77)
    main = process.thread(tid=77)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    main.range("perfdoc.step 0", 0, 1000)
    process.operator(main, "aten::mm", 100, 400)
    (folder / "traces").mkdir()
    path = write_kineto(builder.build(), folder / "traces" / "rank0.json", 77)
    if records is not None:
        (folder / "collectives").mkdir()
        write_collectives(folder / "collectives" / "rank0.jsonl", records)
    return path


def record(start_ns: int, done_ns: int | None) -> CollectiveRecord:
    return CollectiveRecord(
        operation="all_gather",
        group="TENSOR_MODEL_PARALLEL_GROUP",
        group_name="3",
        bytes=64,
        sequence=0,
        issue_ns=UTC + start_ns,
        issued_ns=UTC + start_ns + 10,
        done_ns=None if done_ns is None else UTC + done_ns,
        completion="unknown" if done_ns is None else "callback",
    )


def test_completions_of_the_run_directory_become_communication(tmp_path: Path) -> None:
    # [300, 600): hidden under the operator to 400, exposed 200. One that never completed counts for nothing.
    path = run_directory(tmp_path, [record(300, 600), record(700, None)])
    (rank,) = measure_capture(path, WindowRequest()).ranks
    assert (rank.ledger.compute, rank.ledger.exposed_comm.tp) == (300, 200)
    (row,) = rank.communication
    assert (row.dimension, row.collective, row.count, row.bytes, row.hidden_ns) == (
        "tp",
        "all_gather",
        1,
        64,
        100,
    )


def test_a_damaged_side_file_is_one_line(tmp_path: Path) -> None:
    path = run_directory(tmp_path, [record(300, 600)])
    side_file = tmp_path / "collectives" / "rank0.jsonl"
    side_file.write_text('{"operation": 5}\n' + side_file.read_text())
    with pytest.raises(TraceError, match=r"rank0\.jsonl") as caught:
        measure_capture(path, WindowRequest())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"issue_ns": -(2**63)},
        {"done_ns": UTC + 4 * 10**18},
        {"done_ns": UTC},
        {"bytes": 2**63 + 5},
        {"operation": "all_redu0ce"},  # of the fuzzer: an error of ours, without the file
        {"operation": ""},
    ],
    ids=str,
)
def test_impossible_completions_are_left_out_and_counted(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    damaged = msgspec.structs.replace(record(300, 600), **change)
    path = run_directory(tmp_path, [record(500, 700), damaged])
    measured = measure_capture(path, WindowRequest())
    (row,) = measured.ranks[0].communication
    assert (row.count, row.total_ns) == (1, 200)
    assert "impossible-times" in {n.code for n in measured.notes}
