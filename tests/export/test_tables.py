"""Tables of a diagnosis as data frames."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from perfdoc.export.tables import TABLES
from perfdoc.results import from_json
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel of 100 us launched in `=1+1`, one of 50 us in `mlp` inside it, and a copy of 25 us outside."""
    folder = tmp_path_factory.mktemp("tables")
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("=1+1", 0, 1000)
    thread.range("mlp", 500, 600)
    device.kernel("gemm", 10_000, 110_000, launch=(thread, 10, 20))
    device.kernel("gemm", 110_000, 160_000, launch=(thread, 510, 520))
    device.copy("host_to_device", 1 << 20, 160_000, 185_000, launch=(thread, 2000, 2010))
    write_nsys_sqlite(builder.build(), folder / "x.sqlite")
    options = ("--range-table", "^mlp$", "--range-table", r"^=(1)\+")
    done = perfdoc(
        "analyze", "--no-replay", str(folder / "x.sqlite"), "-o", str(folder / "report"), "--full", *options
    )
    assert done.returncode == 0, done.stderr
    assert "Your ranges" in done.stdout
    return folder / "report"


def test_the_files_are_the_tables(report: Path, tmp_path: Path) -> None:
    done = perfdoc("export", str(report), "--tables", str(tmp_path / "t"))
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == sorted(
        f"{name}.{form}" for name in TABLES for form in ("parquet", "csv")
    )
    for name in TABLES:
        parquet, csv = pd.read_parquet(tmp_path / "t" / f"{name}.parquet"), tmp_path / "t" / f"{name}.csv"
        assert (list(pd.read_csv(csv).columns), len(pd.read_csv(csv))) == (
            list(parquet.columns),
            len(parquet),
        )
    ranges = pd.read_parquet(tmp_path / "t" / "ranges.parquet")
    assert list(zip(ranges["kind"], ranges["path"], ranges["own_compute_ns"], strict=True)) == [
        ("range", "1", 100_000),
        ("range", "1 > mlp", 50_000),
        ("outside", "", 0),
    ]
    assert ranges["whole_compute_ns"].tolist() == [150_000, 50_000, 0]
    assert ranges["own_exposed_memcpy_ns"].tolist() == [0, 0, 25_000]
    stored = from_json((report / "diagnosis.json").read_bytes())
    # Every leaf of the ledger is a column, and the columns sum to it.
    own = ranges.filter(regex="^own_").sum().sum()
    assert own == stored.ranks[0].ledger_ns.total == 175_000
    ledger = pd.read_csv(tmp_path / "t" / "ledger.csv")
    assert ledger[["window_ns", "compute_ns", "exposed_memcpy_ns"]].to_numpy().tolist() == [
        [175_000, 150_000, 25_000]
    ]
    kernels = pd.read_parquet(tmp_path / "t" / "kernels.parquet")
    assert kernels[["count", "total_ns", "mean_ns"]].to_numpy().tolist() == [[2, 150_000, 75_000]]
    copies = pd.read_csv(tmp_path / "t" / "copies.csv")
    assert copies[["direction", "bytes", "total_ns"]].to_numpy().tolist() == [
        ["host to device", 1 << 20, 25_000]
    ]
    assert pd.read_parquet(tmp_path / "t" / "gpu_metrics.parquet").empty


def test_nothing_is_overwritten_unasked(report: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    assert perfdoc("export", str(report), "--tables", str(target)).returncode == 0
    again = perfdoc("export", str(report), "--tables", str(target))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert perfdoc("export", str(report), "--tables", str(target), "--force").returncode == 0


def test_a_spreadsheet_runs_no_name(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("=cmd|' /C calc'!A0", 0, 1000)
    device.kernel("gemm", 10_000, 110_000, launch=(thread, 10, 20))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    report = tmp_path / "report"
    assert (
        perfdoc("analyze", "--no-replay", str(path), "-o", str(report), "--range-table", "cmd").returncode
        == 0
    )
    assert perfdoc("export", str(report), "--tables", str(tmp_path / "t")).returncode == 0
    lines = (tmp_path / "t" / "ranges.csv").read_text().splitlines()
    assert not any(cell.strip('"').startswith("=") for line in lines for cell in line.split(","))
    assert any("'=cmd" in line for line in lines)


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    done = perfdoc("analyze", "--no-replay", str(tmp_path / "none.sqlite"), "--range-table", "(")
    assert done.returncode == 2
    assert "--range-table" in done.stderr
