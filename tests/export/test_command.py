"""`perfdoc export` as a user types it: timelines and tables."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from perfdoc.export.tables import TABLES
from tests.amount import some
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.command import perfdoc
from tests.export.perfetto_file import read
from tests.planted.capture import write_capture

command = partial(perfdoc, "export")


def test_a_capture_becomes_a_file(tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "demo")
    target = tmp_path / "demo.pftrace"
    done = command(str(trace), "-o", str(target))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert "ui.perfetto.dev" in done.stderr
    found = read(target)
    assert found.all_of("ledger")
    again = command(str(trace), "-o", str(target))  # the viewer need not be named
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_without_a_flag_the_timeline_is_written_here(tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "traces")
    done = command(str(trace), "--set", "tp=1", "pp=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    target = tmp_path / f"{trace.stem}.pftrace.gz"
    assert f"wrote {target.name}" in done.stderr
    assert read(target).all_of("ledger")
    assert command(str(trace), cwd=tmp_path).returncode == 2, "nothing is overwritten unasked"
    assert command(str(trace.parent), cwd=tmp_path).returncode == 0
    assert (tmp_path / "timeline.pftrace.gz").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.sqlite", "-o", "x"), "does not exist"),
        (("none.sqlite", "-o", "x", "--set", "tp=many"), "tp"),
        (("none.sqlite", "-o", "x", "--step-range", "("), "regular expression"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr
    assert not Path("x").exists()


def test_a_capture_is_never_overwritten(tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "demo")
    whole = trace.read_bytes()
    (tmp_path / "link").symlink_to(trace)
    for target in (trace, tmp_path / "link"):
        done = command(str(trace), "-o", str(target), "--force")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "is a capture; captures are never changed" in done.stderr
        assert trace.read_bytes() == whole


@pytest.mark.parametrize("name", some(["out.pftrace", "out.pftrace.gz"], ["out.pftrace.gz"]))
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    trace = write_capture(tmp_path / "demo")
    before = sorted(tmp_path.iterdir())

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))

    line = [sys.executable, "-m", "perfdoc", "export", str(trace), "-o", str(tmp_path / name)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, preexec_fn=little)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{tmp_path / name}: cannot be written" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_captures_without_a_gpu_are_left_out_as_by_analyze(tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "demo")
    builder = TimelineBuilder()
    builder.process(pid=9).thread().range("alone", 0, 10)
    silent = write_nsys_sqlite(builder.build(), tmp_path / "silent.sqlite")
    target = tmp_path / "out.pftrace"
    done = command(str(silent), str(trace), "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert "silent.sqlite: holds no GPU kernels" in done.stderr
    assert len(read(target).processes) == 2
    again = Path(shutil.copy(silent, tmp_path / "again.sqlite"))
    done = command(str(silent), str(again), "-o", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "silent.sqlite: holds no GPU kernels" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", some(["out.pftrace", "out.pftrace.gz"], ["out.pftrace.gz"]))
def test_what_a_scheduler_ends_leaves_nothing(tmp_path: Path, name: str) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from perfdoc.export import captures\n"
        "from perfdoc.run.stop import Stopped, raise_stopped\n"
        "raise_stopped()\n"
        "try:\n"
        "    with captures._opened(Path(sys.argv[1])) as file:\n"
        "        file.write(b'half')\n"
        "        assert len(os.listdir(os.path.dirname(sys.argv[1]))) == 1\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "except Stopped as stop:\n"
        "    sys.exit(128 + stop.number)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / name)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (143, "")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel of 100 us launched in `=1+1`, one of 50 us in `mlp` inside it, and a copy of 25 us outside."""
    folder = tmp_path_factory.mktemp("tables")
    builder, thread, device = one_gpu()
    thread.range("=1+1", 0, 1000)
    thread.range("mlp", 500, 600)
    device.kernel("gemm", 10_000, 110_000, launch=(thread, 10, 20))
    device.kernel("gemm", 110_000, 160_000, launch=(thread, 510, 520))
    device.copy("host_to_device", 1 << 20, 160_000, 185_000, launch=(thread, 2000, 2010))
    write_nsys_sqlite(builder.build(), folder / "x.sqlite")
    done = perfdoc("analyze", "--no-replay", str(folder / "x.sqlite"), "-o", str(folder / "report"))
    assert done.returncode == 0, done.stderr
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
    builder, thread, device = one_gpu()
    device.kernel("=cmd|' /C calc'!A0", 10_000, 110_000, launch=(thread, 10, 20))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    report = tmp_path / "report"
    assert perfdoc("analyze", "--no-replay", str(path), "-o", str(report)).returncode == 0
    assert perfdoc("export", str(report), "--tables", str(tmp_path / "t")).returncode == 0
    lines = (tmp_path / "t" / "kernels.csv").read_text().splitlines()
    assert not any(cell.strip('"').startswith("=") for line in lines for cell in line.split(","))
    assert any("'=cmd" in line for line in lines)
