"""Memory that is free, by planted files of the system."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling.usable_memory import usable_memory_bytes

MB = 1 << 20


def planted(folder: Path, cgroup: str, files: dict[str, str]) -> int:
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   8388608 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (folder / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "groups" / name).write_text(text)
    return usable_memory_bytes(proc, folder / "groups")


def group(folder: str, limit: str, used_mb: int, of_files_mb: int, version: int) -> dict[str, str]:
    names = ("memory.max", "memory.current", "") if version == 2 else _V1
    half = of_files_mb * MB // 2
    stat = f"{names[2]}inactive_file {half}\n{names[2]}active_file {half}\nanon 7\n"
    return {
        f"{folder}/{names[0]}": limit,
        f"{folder}/{names[1]}": str(used_mb * MB),
        f"{folder}/memory.stat": stat,
    }


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def test_what_the_machine_has(tmp_path: Path) -> None:
    assert planted(tmp_path, "", {}) == 8 << 30


def test_what_a_container_leaves(tmp_path: Path) -> None:
    """2,000 MB, of which 700 are used, 200 of them for files."""
    files = group("job/step", str(2_000 * MB), 700, 200, 2)
    assert planted(tmp_path, "0::/job/step\n", files) == 1_500 * MB


def test_the_group_above_counts_too(tmp_path: Path) -> None:
    files = group("job/step", "max", 700, 200, 2) | group("job", str(1_000 * MB), 700, 0, 2)
    assert planted(tmp_path, "0::/job/step\n", files) == 300 * MB


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    """No limit is a very large number there. Inside a container the path is one of outside."""
    files = group("memory", str(600 * MB), 100, 50, 1) | group("memory/job", str(2**63 - 4096), 100, 0, 1)
    said = "4:cpu,memory:/job\n0::/job\n"
    assert planted(tmp_path / "one", said, files) == 550 * MB
    assert planted(tmp_path / "two", "4:memory:/docker/a1b2\n", files) == 550 * MB


def test_a_limit_that_is_passed_leaves_nothing(tmp_path: Path) -> None:
    assert planted(tmp_path, "0::/job\n", group("job", str(100 * MB), 200, 0, 2)) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_the_limit_of_the_process() -> None:
    program = "from perfdoc.profiling.usable_memory import usable_memory_bytes as u; print(u())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (512 * MB, 512 * MB)),
    )
    assert int(found.stdout) <= 512 * MB
