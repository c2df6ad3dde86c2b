"""Nsight's GPU metrics by kernel class, and the SM clock during kernels, worked out by hand."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.efficiency import partition
from perfdoc.analyzers.efficiency.partition import clock_frac
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.tables import Tables
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder


def tables_of(paths: list[Path]) -> Tables:
    return measure_job([measure_capture(path, WindowRequest()) for path in paths]).tables


def sampled(path: Path, rows: list[tuple[int, int, int, int]], names: list[tuple[int, int, str]]) -> Path:
    """A GEMM [0, 1000), an all-reduce [1000, 2000), nothing [2000, 3000), a GEMM [3000, 3500), and then both
    samples (time, typeId, metricId, value) and names of metrics (typeId, metricId, name)."""
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 1000)
    device.kernel(ALL_REDUCE, 1000, 2000, stream=20)
    device.kernel(GEMM, 3000, 3500)
    device.kernel(ALL_REDUCE, 3500, 4000, stream=20)
    write_nsys_sqlite(builder.build(), path)
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE GPU_METRICS (rawTimestamp INT, timestamp INT, typeId INT, metricId INT, value INT)"
        )
        db.execute(
            "CREATE TABLE TARGET_INFO_GPU_METRICS "
            "(typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT)"
        )
        db.executemany("INSERT INTO GPU_METRICS VALUES (0, ?, ?, ?, ?)", rows)
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, 1, 'GPU Metrics', ?, ?)", names)
    db.close()
    return path


KIND = 7 << 24
TENSOR, OTHER = "Tensor Active [Throughput %]", "Compute Warps in Flight [Avg]"


def test_metrics_by_the_class_that_ran_alone(tmp_path: Path) -> None:
    """A sample every 500 ns: two in each thousand. The first has no time of its own: nothing is known of when
    it began."""
    values = (90, 80, 60, 4, 6, 0, 2, 50, 8)
    times = range(0, 4500, 500)
    rows = [(t, KIND, 1, v) for t, v in zip(times, values, strict=True)]
    rows += [(t, KIND, 2, 1) for t in times]
    path = sampled(tmp_path / "x.sqlite", rows, [(KIND, 1, TENSOR), (KIND, 2, OTHER)])
    found = tables_of([path]).gpu_metrics
    assert (found.state, found.period_ns) == ("measured", 500)
    assert {(r.meaning, r.metric) for r in found.rows} == {("tensor_active", TENSOR)}
    assert {r.kernel_class: (r.samples, r.mean, r.most) for r in found.rows} == {
        "all": (8, (80 + 60 + 4 + 6 + 0 + 2 + 50 + 8) / 8, 80),
        # Those that end at 500, 1000 and 3500; at 1500, 2000 and 4000; at 2500 and 3000.
        "gemm": (3, (80 + 60 + 50) / 3, 80),
        "communication": (3, (4 + 6 + 8) / 3, 8),
        "idle": (2, 1.0, 2),
    }


def test_a_sample_over_two_classes_is_mixed(tmp_path: Path) -> None:
    rows = [(t, KIND, 1, 10) for t in (0, 700, 1400, 2100)]
    found = tables_of([sampled(tmp_path / "x.sqlite", rows, [(KIND, 1, TENSOR)])]).gpu_metrics
    # [0, 700) the GEMM; [700, 1400) both; [1400, 2100) communication for 600 of 700: less than nine tenths.
    assert {r.kernel_class: r.samples for r in found.rows} == {"all": 3, "gemm": 1, "mixed": 2}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([], [(KIND, 1, TENSOR)]),
        ([(0, KIND, 1, 5)], []),
        ([(0, KIND, 1, 5)], [(KIND, 1, TENSOR)]),
        ([(2**62, KIND, 1, 5), (-(2**63), KIND, 1, -5), (5, KIND, 1, 2**60)], [(KIND, 1, "T" * 10**5)]),
        ([(0, KIND + 3, 1, 5), (500, KIND + 3, 1, 5)], [(KIND + 3, 1, TENSOR)]),
    ],
)
def test_what_says_nothing_of_this_gpu_is_not_measured(
    rows: list[tuple[int, int, int, int]], names: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    found = tables_of([sampled(tmp_path / "x.sqlite", rows, names)]).gpu_metrics
    assert (found.state, found.rows) == ("not_measured", [])
    assert found.reason


def test_more_samples_than_are_read_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfdoc.traces.nsys import sampled as metrics

    monkeypatch.setattr(metrics, "MAX_SAMPLES", 3)
    rows = [(t, KIND, 1, 10) for t in (0, 500, 1000, 1500)]
    found = tables_of([sampled(tmp_path / "x.sqlite", rows, [(KIND, 1, TENSOR)])]).gpu_metrics
    assert found.state == "not_measured"
    assert "4 samples" in found.reason


CLOCK = "GPC Clock Frequency [MHz]"


def test_the_clock_of_a_stretch_is_its_samples_mean_over_the_highest(tmp_path: Path) -> None:
    """1,800 MHz until 1,000 ns, 1,200 until 2,000, nothing sampled from 4,000 on. [500, 1000) runs at the
    highest, [500, 1500) at 1,500, [1500, 2000) at 1,200, half of [1500, 2500) at 1,200 and half at 900."""
    at = ((0, 1700), (500, 1800), (1000, 1800), (1500, 1200), (2000, 1200), (2500, 900), (4000, 900))
    path = sampled(tmp_path / "x.sqlite", [(t, KIND, 1, v) for t, v in at], [(KIND, 1, CLOCK)])
    (view,) = views_of(read_trace(path))
    start = np.array([500, 500, 1500, 1500, 10_000])
    end = np.array([1000, 1500, 2000, 2500, 11_000])
    found = clock_frac(view, start, end)
    assert found is not None
    assert found.tolist() == pytest.approx([1.0, 1500 / 1800, 1200 / 1800, 1050 / 1800, 1.0])


@pytest.mark.parametrize("origin", [0, 1_700_000_000_000_000_000])
def test_one_sample_is_not_the_highest_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: int
) -> None:
    """1,000 MHz for 200 us, half of it for 2 us more, twice for 1 us, and thrice where nothing runs: 1 of 203
    us is below 1 %. 20 ns of a stretch of 40 at half the clock."""
    us = np.array([0, 200, 202, 203, 300, 400]) * 1_000 + origin
    samples = us[:-1], us[1:], np.array([1000, 500, 2000, 1000, 3000])
    monkeypatch.setattr(partition, "samples_of", lambda *_: samples)
    start, end = np.array([0, 199_980, 200_000]) + origin, np.array([199_980, 200_020, 203_000]) + origin
    found = clock_frac(None, start, end)  # type: ignore[arg-type]
    assert found is not None
    assert found.tolist() == pytest.approx([1.0, 0.75, 1.0])


def test_a_clock_that_was_not_sampled_is_unknown(tmp_path: Path) -> None:
    path = sampled(tmp_path / "x.sqlite", [(0, KIND, 1, 5), (500, KIND, 1, 5)], [(KIND, 1, TENSOR)])
    (view,) = views_of(read_trace(path))
    assert clock_frac(view, np.array([0]), np.array([10])) is None
