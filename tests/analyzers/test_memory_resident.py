"""Memory of a process, from the samples of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.analyzers.memory.snapshot import measure_resident
from perfdoc.profiling.logs import LineWriter
from perfdoc.profiling.memory import MemorySample, sample_memory
from perfdoc.traces import TraceError

SAMPLE = MemorySample(
    event="step",
    step=1,
    time_ns=1_000,
    resident_bytes=500,
    peak_resident_bytes=900,
    heap_used_bytes=100,
    heap_free_bytes=0,
    python_blocks=1,
)


def written(path: Path, *changes: dict[str, Any]) -> Path:
    writer = LineWriter(path)
    for change in changes:
        writer.write(msgspec.structs.replace(SAMPLE, **change))
    writer.close()
    return path


def test_peak_and_growth(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rank0.jsonl",
        {"event": "start", "resident_bytes": 400},
        {"time_ns": 10, "resident_bytes": 500, "heap_used_bytes": 100, "allocated_bytes": 7_000},
        {"time_ns": 20, "resident_bytes": 800, "heap_used_bytes": 130, "allocated_bytes": 7_000},
        {"time_ns": 30, "resident_bytes": 600, "heap_used_bytes": 161, "allocated_bytes": 7_000},
        {"event": "oom", "peak_allocated_bytes": 9_000, "peak_reserved_bytes": 9_500},
        {"event": "end", "resident_bytes": 550},
    )
    m, step_ends_ns = measure_resident(path, 0)
    assert (m.state, m.reason, m.samples, m.rank) == ("measured", "", 6, 0)
    assert step_ends_ns == [10, 20, 30]
    assert (m.start_resident_bytes, m.peak_resident_bytes, m.process_peak_resident_bytes) == (400, 800, 900)
    # (600 - 500) / 2 and (161 - 100) / 2 to the even byte; what is allocated on the GPU stays as it is.
    assert (m.resident_growth_per_step_bytes, m.heap_growth_per_step_bytes) == (50, 30)
    assert m.allocated_growth_per_step_bytes == 0
    assert (m.peak_allocated_bytes, m.peak_reserved_bytes) == (9_000, 9_500)
    assert m.oom_events == 1


def test_what_is_not_there_is_null(tmp_path: Path) -> None:
    m, _ = measure_resident(written(tmp_path / "a.jsonl", {}, {"resident_bytes": None}, {}), 0)
    assert m.resident_growth_per_step_bytes is None
    assert m.heap_growth_per_step_bytes == 0
    assert (m.peak_allocated_bytes, m.allocated_growth_per_step_bytes) == (None, None)
    m, _ = measure_resident(written(tmp_path / "b.jsonl", {}, {}), 0)
    assert m.heap_growth_per_step_bytes is None
    assert "2 ends of steps" in m.reason
    (tmp_path / "c.jsonl").write_bytes(b"")
    assert measure_resident(tmp_path / "c.jsonl", 0)[0].state == "not_measured"


def test_a_real_process(tmp_path: Path) -> None:
    """Four steps that each keep 8 MiB."""
    kept = []
    with closing(LineWriter(tmp_path / "rank0.jsonl")) as writer:
        for step in range(4):
            kept.append(bytearray(b"x" * (8 << 20)))
            writer.write(sample_memory("step", step, cuda=False))
    m, _ = measure_resident(tmp_path / "rank0.jsonl", 0)
    assert m.peak_resident_bytes is not None
    if m.heap_growth_per_step_bytes is not None:
        assert 7 << 20 < m.heap_growth_per_step_bytes < 10 << 20


@pytest.mark.parametrize(
    "line",
    ['{"event": "step"}', '{"event": 5}', "[]", "x" * (1 << 21), '{"event":"step","step":1,"time_ns":-1,'],
)
def test_damaged_lines(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_text(line + "\n")
    if line.endswith(","):
        assert measure_resident(path, 0)[0].samples == 0
        return
    with pytest.raises(TraceError) as caught:
        measure_resident(path, 0)
    assert "\n" not in str(caught.value)


def test_impossible_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.jsonl", {"resident_bytes": -1})
    with pytest.raises(TraceError, match="impossible number"):
        measure_resident(path, 0)
    with pytest.raises(TraceError):
        measure_resident(tmp_path / "none.jsonl", 0)
