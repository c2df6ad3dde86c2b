"""A PyTorch trace that several processes share: as a job's ranks merged into one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.traces.kineto.merged import Places
from perfdoc.traces.kineto.read import read_kineto


def of_rank(rank: int, *, first_id: int | None = None, launches: int = 30) -> list[dict[str, Any]]:
    """Launches of a process of its own, on a GPU of its own; their ids count up."""
    pid, events = 100 + rank, []
    first = 1_000 * rank + 1 if first_id is None else first_id
    for i in range(launches):
        args = {"correlation": first + i, "device": rank, "stream": 7}
        at = {"ts": 1_000 + 50 * i + rank}
        call = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": pid,
            "tid": pid,
            "dur": 5,
        }
        events.append({**call, **at, "args": {"correlation": args["correlation"]}})
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": rank, "tid": 7, "dur": 30}
        events.append({**kernel, "ts": at["ts"] + 10, "args": args})
    return events


@pytest.mark.parametrize(("there", "told"), [(2, False), (1, True)])
def test_ranks_without_a_number_are_ranks_all_the_same(there: int, told: bool, tmp_path: Path) -> None:
    """Of a job of two; which process is which rank a file of two does not say."""
    path = tmp_path / "merged.json"
    events = [event for rank in range(there) for event in of_rank(rank)]
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}))
    found = diagnose([measure_capture(path, WindowRequest())])
    assert len(found.ranks) == there
    assert any(q.code == "missing-ranks" for q in found.quality) == told


def test_a_rank_without_a_number_is_counted(tmp_path: Path) -> None:
    """A job of two by what the file says, and one process that says of itself nothing."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": {"world_size": 2}, "traceEvents": of_rank(0)}))
    found = diagnose([measure_capture(path, WindowRequest())])
    (said,) = [q.message for q in found.quality if q.code == "missing-ranks"]
    assert "2 ranks; 1 of them (1 of unknown rank) is" in said


def as_named(pid: int, rank: int) -> str | int:
    return f"[TP{rank:02d}] {pid}"


def as_added(pid: int, rank: int) -> str | int:
    return pid + 100_000 * (rank + 1)


@pytest.mark.parametrize(
    ("renamed", "gpu", "in_order_of_time"),
    [
        (None, None, False),
        (as_named, None, True),
        (as_named, 0, True),
        (as_added, 0, True),
        (as_added, 0, False),
    ],
)
def test_ranks_whose_ids_are_all_alike(
    renamed: Callable[[int, int], str | int] | None, gpu: int | None, in_order_of_time: bool, tmp_path: Path
) -> None:
    """Ids 1 to 30 on three ranks, each of which launches on its own GPU; gpu: the number that all of them
    have. The last rank launches latest."""
    events = [[dict(e) for e in of_rank(rank, first_id=1)] for rank in range(3)]
    for rank, event in ((rank, event) for rank, mine in enumerate(events) for event in mine):
        if event["cat"] == "kernel":
            at = rank if gpu is None else gpu
            event |= {"pid": at, "args": event["args"] | {"device": at}}
        event["pid"] = renamed(event["pid"], rank) if renamed else event["pid"]
    rows = [event for mine in events for event in mine]
    if in_order_of_time:
        rows.sort(key=lambda event: event["ts"])
    path = tmp_path / "merged.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = read_kineto(path)
    added = 0 if renamed is not as_added else 100_000
    assert [(d.process, d.ordinal) for d in trace.devices] == [
        (100 + rank + added * (rank + 1), rank if gpu is None else gpu) for rank in range(3)
    ]
    for at, device in enumerate(trace.devices):
        rank = device.process % 10
        assert set((trace.kernels.start_ns[trace.kernels.device == at] // 1000 % 50).tolist()) == {10 + rank}
    assert len(trace.api_calls) == 90


def test_ids_that_ranks_share_do_not_tear_a_gpu_apart(tmp_path: Path) -> None:
    """Ids 1 to 30 on one rank, 11 to 60 on the other, of which 31 to 60 are its alone: 20 are of both. A
    kernel of it that was launched before the capture has id 5, which is a call of the first rank."""
    path = tmp_path / "merged.json"
    events = [*of_rank(0), *of_rank(1, first_id=11, launches=50)]
    stray = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 7, "ts": 990, "dur": 5}
    events.append({**stray, "args": {"correlation": 5, "device": 1, "stream": 7}})
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(path)
    of = {(d.process, d.ordinal): int((trace.kernels.device == i).sum()) for i, d in enumerate(trace.devices)}
    assert (of[100, 0], of[101, 1]) == (30, 50)
    assert sum(of.values()) == 81


@pytest.mark.parametrize(("ranks", "odd"), [(1, [3]), (1, range(0, 300, 2)), (2, [3])])
def test_another_pid_makes_no_other_gpu(ranks: int, odd: Sequence[int], tmp_path: Path) -> None:
    """Rows of one process are of its GPU whatever pid they have, and one row of hundreds is damage."""
    events = [event for rank in range(ranks) for event in of_rank(rank, launches=300)]
    kernels = [event for event in events if event["cat"] == "kernel"]
    for i in odd:
        kernels[i]["pid"] = 9
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(path)
    assert [(d.process, d.ordinal) for d in trace.devices] == [(100 + r, r) for r in range(ranks)]


def test_thousands_of_names_that_end_alike_are_processes_each(tmp_path: Path) -> None:
    """The first of 4,000 that end in 7 is number 7, and their GPUs have their numbers back."""
    places = Places()
    found = [places.process(f"[{i}] 7") for i in range(4_000)]
    assert (found[0], len(set(found))) == (7, 4_000)
    gpus = np.array([places.of("gpu", i) for i in range(4_000)])
    merged = places.resolved(gpus, np.array(found), found)
    assert merged.ordinals(gpus).tolist() == list(range(4_000))
