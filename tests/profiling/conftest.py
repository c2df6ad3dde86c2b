"""Tools that the profiling tests need and a machine may lack: torch, nvtx and Nsight Systems."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfdoc.profiling import garbage, ranges
from perfdoc.profiling.distributed import collectives
from perfdoc.profiling.nsys.command import Nsys, find_nsys

Launch = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def nothing_left_on() -> Iterator[None]:
    """Ranges and hooks belong to the process: no test leaves them to the next."""
    yield
    ranges.disable()
    garbage.uninstall()
    collectives.uninstall()
    collectives.drain()


@pytest.fixture
def needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.fixture
def needs_nvtx() -> None:
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("the nvtx package is not installed")


@pytest.fixture(scope="session")
def nsys() -> Nsys:
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    return found


@pytest.fixture
def two_ranks(needs_torch: None, tmp_path: Path) -> Launch:
    """Run a script of this folder as two processes that share a rendezvous file; what each printed."""

    def launch(script: str, *arguments: str, timeout_s: float = 120) -> list[str]:
        meeting = tmp_path / "rendezvous"
        line = [sys.executable, str(Path(__file__).with_name(script)), str(meeting)]
        processes = [
            subprocess.Popen(
                [*line, str(rank), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in (0, 1)
        ]
        try:
            shown = [process.communicate(timeout=timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for process, (_, errors) in zip(processes, shown, strict=True):
            assert process.returncode == 0, errors[-3000:]
        return [output for output, _ in shown]

    return launch
