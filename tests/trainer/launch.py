"""Starts ranks as processes, waits with a limit, and kills what is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker.py")


def need_megatron() -> None:
    """Skip, with the reason, where the trainer's dependencies are not installed."""
    for name in ("torch", "megatron.core"):
        if importlib_missing(name):
            pytest.skip(f"{name} is not installed: pip install 'perfdoc[train]'")


def importlib_missing(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is None
    except ModuleNotFoundError:
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Ranks:
    """The started processes, rank by rank."""

    processes: list[subprocess.Popen[str]]

    def wait(self, timeout_s: float) -> list[int]:
        """Exit codes. Raises TimeoutError; kills every rank in any case."""
        limit = time.monotonic() + timeout_s
        try:
            for process in self.processes:
                process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"no end after {timeout_s} s") from error
        finally:
            self.kill()
        return [process.returncode for process in self.processes]

    def kill(self) -> None:
        """SIGKILL to whatever still runs, with its helpers."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def errors(self) -> list[str]:
        """What each rank wrote on standard error; after `wait` or `kill`."""
        return [process.stderr.read() if process.stderr else "" for process in self.processes]


def start(arguments: list[str], world_size: int, folder: Path) -> Ranks:
    """Start `python ARGUMENTS` once per rank, as torchrun would; standard error goes to files in `folder`."""
    port = str(_free_port())
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(world_size):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        with (folder / f"stderr.rank{rank}.txt").open("w") as stream:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    env=environment,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                    text=True,
                )
            )
    return Ranks(processes)


def said(folder: Path, rank: int = 0) -> str:
    """What a rank wrote."""
    return (folder / f"stderr.rank{rank}.txt").read_text()


def run_cases(
    cases: dict[str, list[str]], world_size: int, folder: Path, timeout_s: float = 240.0
) -> dict[str, Any]:
    """Train every case on `world_size` ranks; returns rank 0's losses and gradient norms by case name."""
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.json"
    listed = [{"name": name, "overrides": overrides} for name, overrides in cases.items()]
    job.write_text(json.dumps({"cases": listed, "out": str(folder)}), encoding="utf-8")
    codes = start([str(WORKER), str(job)], world_size, folder).wait(timeout_s)
    if any(codes):
        first = next(rank for rank, code in enumerate(codes) if code)
        pytest.fail(f"exit codes {codes}; rank {first} said:\n{said(folder, first)[-4000:]}")
    return {name: read_result(folder, name, 0) for name in cases}


def read_result(folder: Path, name: str, rank: int) -> Any:
    """The losses, gradient norms, steps and groups that one rank saw in one case."""
    return json.loads((folder / f"{name}.rank{rank}.json").read_text())
