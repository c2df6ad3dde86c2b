"""A PyTorch trace that several processes share: as a job's ranks merged into one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose


def of_rank(rank: int) -> list[dict[str, Any]]:
    """Thirty launches of a process of its own, on a GPU of its own."""
    pid, events = 100 + rank, []
    for i in range(30):
        args = {"correlation": 1_000 * rank + i + 1, "device": rank, "stream": 7}
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
