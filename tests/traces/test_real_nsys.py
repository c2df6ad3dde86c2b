"""Reports and folders that a real nsys wrote (of a CPU program: kernels need a GPU)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from tests.nsys_start import profile

PROGRAM = """
import nvtx, time
nvtx.mark("perfdoc.rank 0 world=1 device=cpu")
for i in range(3):
    with nvtx.annotate(f"perfdoc.step {i}"):
        with nvtx.annotate("perfdoc.data"):
            time.sleep(0.01)
        with nvtx.annotate("perfdoc.forward"):
            time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .nsys-rep of the program, and the parquetdir of it beside where this nsys exports one."""
    nsys = os.environ.get("PERFDOC_NSYS") or shutil.which("nsys")
    if nsys is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("nvtx is not installed")
    folder = tmp_path_factory.mktemp("nsys")
    (folder / "app.py").write_text(PROGRAM)
    line = ["profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", "-o", "x", sys.executable, "app.py"]
    profile([nsys, *line], folder / "x.nsys-rep", cwd=folder)
    shown = subprocess.run([nsys, "export", "--help"], capture_output=True, text=True, timeout=60)
    if "parquetdir" in shown.stdout:
        line = ["export", "--type", "parquetdir", "-o", "tables", "x.nsys-rep"]
        subprocess.run([nsys, *line], cwd=folder, check=True, capture_output=True, timeout=120)
    return folder / "x.nsys-rep"


@pytest.mark.parametrize("what", ["x.nsys-rep", "tables"])
def test_a_real_capture_is_read(report: Path, what: str) -> None:
    if not (report.parent / what).exists():
        pytest.skip("this nsys exports no parquetdir (2023.4 and later do)")
    before = sorted(p.name for p in report.parent.iterdir())
    (rank,) = measure_capture(report.parent / what, WindowRequest()).ranks
    assert (rank.device.rank, rank.on_host, rank.window.steps) == (0, True, 3)
    # Three sleeps of 20 ms in forward ranges and of 10 ms in data ranges; a sleep is never shorter.
    assert rank.ledger.compute >= 60_000_000
    assert rank.ledger.idle.data >= 30_000_000
    assert sorted(p.name for p in report.parent.iterdir()) == before
