"""Commands that measure captures read them by the same options."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results import Diagnosis, from_json
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import one_gpu
from tests.command import perfdoc


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Two kernels of 100 us, the second of an unknown name, with 50 us between them."""
    builder, thread, device = one_gpu()
    for name, at in (("gemm", 0), ("mystery_exchange", 150_000)):
        device.kernel(name, at, at + 100_000, launch=(thread, at, at + 1))
    return write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")


def diagnosed(capture: Path, folder: Path, *options: str) -> Diagnosis:
    done = perfdoc("analyze", str(capture), "-o", str(folder), *options)
    assert done.returncode == 0, done.stderr
    return from_json((folder / "diagnosis.json").read_bytes())


def test_diff_and_export_know_what_communicates_and_the_window(capture: Path, tmp_path: Path) -> None:
    named = ("--comm-kernel", "mystery")
    (rank,) = diagnosed(capture, tmp_path / "a", *named).ranks
    assert rank.ledger_ns.exposed_comm.total == 100_000
    out = tmp_path / "out.pftrace"
    plain = perfdoc("export", str(capture), "-o", str(out))
    assert (plain.returncode, b"mystery_exchange" in out.read_bytes()) == (0, True)
    whole = out.read_bytes()
    for options in (named, ("--window", "0,100us")):
        done = perfdoc("export", str(capture), "--force", "-o", str(out), *options)
        assert (done.returncode, out.read_bytes() == whole) == (0, False), done.stderr
    halves = perfdoc("diff", str(capture), str(capture), "--format", "json", "--window", "0,100us")
    assert halves.returncode == 0, halves.stderr
    assert "100.000 µs" in halves.stdout
