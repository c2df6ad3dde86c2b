"""A bound on the memory of an analysis: kept by the kernel, and told where it is too low."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from perfdoc.diagnose.asked import UserError
from perfdoc.diagnose.memory_limit import LEAST_BYTES, Limited, NeedsMemoryError, bounded, limit_bytes
from perfdoc.diagnose.place import Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's memory")
MIB = 2**20


def filled(mebibytes: int) -> tuple[int, int]:
    """Process and length: in a worker, whose memory has to hold it."""
    return os.getpid(), len(bytearray(mebibytes * MIB))


def tasks(*mebibytes: int) -> list[Task[tuple[int, int]]]:
    return [Task(files=[Path(f"{each}.sqlite")], work=partial(filled, each)) for each in mebibytes]


def test_one_that_needs_more_gets_all_that_there_is() -> None:
    # Of 1 GiB this process keeps a quarter; two workers have 384 MiB each, and one alone 768 MiB.
    found = dict(Limited(1024 * MIB, 2).run(tasks(1, 500, 2)))
    assert {i: length // MIB for i, (_, length) in found.items()} == {0: 1, 1: 500, 2: 2}
    assert found[1][0] not in (found[0][0], found[2][0], os.getpid())


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(NeedsMemoryError) as error:
        dict(Limited(LEAST_BYTES, 1).run(tasks(1, 300)))
    assert error.value.path == "300.sqlite"
    assert "256.0 MiB" in error.value.what


def test_this_process_is_bounded_too_and_only_meanwhile() -> None:
    with bounded(LEAST_BYTES), pytest.raises(MemoryError):
        bytearray(LEAST_BYTES)
    assert len(bytearray(LEAST_BYTES)) == LEAST_BYTES


def test_a_worker_without_a_limit_takes_as_much() -> None:
    """What the tests above allocate is refused for the limit, and for nothing else."""
    assert filled(500)[1] == 500 * MIB


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("4 GiB", 4 * 2**30), ("0.5g", 2**29), ("600M", 600 * MIB)]
)
def test_sizes(text: str, expected: int) -> None:
    assert limit_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "4", "GB", "-4GB", "1e9GB", "4 parsecs", "nanGB", "511M", "0G", "٤GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="--memory-limit"):
        limit_bytes(text)


def analyse(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfdoc", "analyze", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_the_diagnosis_is_that_without_a_limit(tmp_path: Path, shared_traces: Path) -> None:
    trace = shared_traces / "nsys/cuda_graph_a100.sqlite"
    free = analyse(tmp_path, trace, "--json", "free.json")
    bound = analyse(tmp_path, trace, "--json", "bound.json", "--memory-limit", "512M")
    assert (free.returncode, bound.returncode) == (0, 0), bound.stderr
    assert (tmp_path / "bound.json").read_bytes() == (tmp_path / "free.json").read_bytes()


def test_dask_has_limits_of_its_own(tmp_path: Path, shared_traces: Path) -> None:
    pytest.importorskip("distributed", reason="perfdoc[dask] is not installed")
    said = analyse(tmp_path, shared_traces / "nsys", "--dask", "--memory-limit", "1G")
    assert said.returncode == 2
    assert "--memory-limit" in said.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_too_little_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    """200,000 kernels of one device take 0.4 GB with their replay (docs/performance.md); half of 512 MiB is
    given to who measures. With 2 GiB there is enough."""
    made = [
        sys.executable,
        "benchmarks/generate.py",
        "--kernels=200000",
        "--devices=1",
        f"--folder={tmp_path}",
    ]
    path = Path(subprocess.run(made, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    (tmp_path / "here").mkdir()
    said = analyse(tmp_path / "here", path, "--memory-limit", "512M")
    assert said.returncode == 2
    assert not list((tmp_path / "here").iterdir())
    assert said.stderr.count("\n") == 1
    assert path.name in said.stderr
    assert "--memory-limit" in said.stderr
    enough = analyse(tmp_path / "here", path, "--memory-limit", "2G", "--brief")
    assert enough.returncode == 0, enough.stderr
