"""Kineto files: the rows of one process and what they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.captures.kineto import write_kineto
from tests.captures.timeline import Timeline


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return loaded


def rows(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e.get("cat") == category and e["ph"] == "X"]


def test_one_process_with_its_rank_groups_and_device(timeline: Timeline, tmp_path: Path) -> None:
    trace = read(write_kineto(timeline, tmp_path / "rank1.json", 1001))
    info = trace["distributedInfo"]
    assert (info["rank"], info["world_size"]) == (1, 2)
    assert [(g["pg_name"], g["pg_desc"], g["ranks"]) for g in info["pg_config"]] == [
        ("1", "DATA_PARALLEL_GROUP", [0, 1])
    ]
    assert [(d["id"], d["numSms"]) for d in trace["deviceProperties"]] == [(1, 132)]
    assert trace["baseTimeNanoseconds"] == 1_700_000_000_123_456_789
    assert {e["args"]["device"] for e in rows(trace, "kernel")} == {1}
    assert {e["pid"] for e in rows(trace, "cuda_runtime")} == {1001}
    kernel = rows(trace, "kernel")[0]
    # [100, 300) ns are 0.1 and 0.2 us.
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("void gemm<bf16>(int)", 0.1, 0.2)
    assert kernel["args"]["grid"] == [3, 4, 5]
    (copy,), (memset,) = rows(trace, "gpu_memcpy"), rows(trace, "gpu_memset")
    assert (copy["name"], copy["args"]["bytes"]) == ("Memcpy HtoD (Pinned -> Device)", 65536)
    assert (memset["tid"], memset["args"]["bytes"]) == (7, 128)
    assert [e["name"] for e in rows(trace, "cpu_op")] == ["aten::mm"]
    assert [e["name"] for e in rows(trace, "user_annotation")] == ["perfdoc.step 0", "background"]


def test_collective_facts_are_on_the_kernel_and_the_wait_names_its_record(
    timeline: Timeline, tmp_path: Path
) -> None:
    trace = read(write_kineto(timeline, tmp_path / "x.json", 1000))
    args = rows(trace, "kernel")[1]["args"]
    expected = {
        "Collective name": "allreduce",
        "Process Group Name": "1",
        "Process Group Description": "DATA_PARALLEL_GROUP",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
        "dtype": "BFloat16",
        "In msg nelems": 2048,
        "Seq": 9,
    }
    assert {key: args[key] for key in expected} == expected
    assert "Src Rank" not in args
    wait, device = rows(trace, "cuda_sync")
    record = next(e for e in rows(trace, "cuda_runtime") if e["name"] == "cudaEventRecord")
    assert (wait["name"], wait["tid"], wait["args"]["wait_on_stream"]) == ("Stream Wait Event", 7, 20)
    assert wait["args"]["wait_on_cuda_event_record_corr_id"] == record["args"]["correlation"]
    assert (device["name"], device["tid"]) == ("Context Sync", -1)
