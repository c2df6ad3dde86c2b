"""A `perfdoc run` that a test watches, disturbs and outlives."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

SMALL = (
    "tiny",
    "hidden_size=32",
    "ffn_hidden_size=32",
    "seq_length=32",
    "lr_warmup_iters=2",
    "eval_interval=null",
    "data_cache=data",
)
"""A step takes some hundredths of a second."""
ENDLESS = (*SMALL, "train_iters=100000")

PLANT = """
import os, signal, sys
if os.environ.get("RANK") == "1" and "perfdoc.trainer.main" in sys.orig_argv[1:4]:
    def fire(number, frame):
        raise RuntimeError("planted error\\nin two lines")
    signal.signal(signal.SIGUSR1, fire)
"""
"""A sitecustomize.py: rank 1 raises this, wherever it is, when it gets SIGUSR1."""


def needs_training() -> None:
    """Skip, with the reason, where the trainer's dependencies are not installed."""
    for module in ("torch", "megatron"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (pip install 'perfdoc[train]')")


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    lines: list[str]
    """Of standard error, without the steps' own and the command line."""
    output: str


HANGS_S = 400.0
"""For what takes ten seconds on two idle cores."""
_MARK = "PERFDOC_TEST_RUN"
"""A variable that only one run's processes have: two machines' runs share a folder."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Running:
    """A started `perfdoc run`."""

    folder: Path
    process: subprocess.Popen[str]
    out: str
    mark: str

    @classmethod
    def start(
        cls,
        folder: Path,
        *arguments: str,
        out: str = "out",
        name: str = "run",
        before: Sequence[str] = (),
        **env: str,
    ) -> Running:
        """Start `perfdoc run ARGUMENTS` (-o `out` goes first) in `folder`; it measures no peak, which takes
        longer than most of these runs."""
        mark = f"{os.getpid()}-{next(_numbers)}"
        command = [*before, sys.executable, "-m", "perfdoc", "run", "--no-peak", "-o", out, *arguments]
        with (folder / f"{name}.out").open("w") as stdout, (folder / f"{name}.err").open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=stdout,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", _MARK: mark, **env},
            )
        return cls(folder / name, process, out, mark)

    def wait_for_steps(self, count: int, *, rank: int = 0, timeout_s: float = HANGS_S) -> None:
        """Until a rank has logged `count` steps."""
        steps = self.folder.parent / self.out / "steps" / f"rank{rank}.jsonl"
        self.wait_for(
            lambda: steps.exists() and len(steps.read_text().splitlines()) >= count, timeout_s=timeout_s
        )

    def wait_for(self, ready: Callable[[], bool], *, timeout_s: float = HANGS_S) -> None:
        """Until something is true of the running run."""
        give_up = time.monotonic() + timeout_s
        with self._gone_on_failure():
            while not ready():
                assert self.process.poll() is None, self.folder.with_suffix(".err").read_text()
                assert time.monotonic() < give_up
                time.sleep(0.1)

    def rank_pid(self, rank: int) -> int:
        """The process that trains as `rank`."""
        for pid in self._ours():
            words = _read(pid, "cmdline")
            trains = b"perfdoc.trainer.main" in words[:4]  # those of nsys have it further on
            if trains and f"RANK={rank}".encode() in _read(pid, "environ"):
                return pid
        raise AssertionError(f"no process of rank {rank}")

    def launcher_pid(self) -> int:
        """The process that `perfdoc run` started."""
        (pid,) = (p for p in self._ours() if b"perfdoc.trainer.launcher" in _read(p, "cmdline")[:4])
        return pid

    def end(self, timeout_s: float = HANGS_S) -> Ended:
        """Wait for the end."""
        try:
            code = self.process.wait(timeout=timeout_s)
        finally:
            self.kill()
        said = self.folder.with_suffix(".err").read_text().splitlines()
        lines = [
            line for line in said if not line.startswith("step ") and "perfdoc.trainer.launcher" not in line
        ]
        return Ended(code, lines, self.folder.with_suffix(".out").read_text())

    def survivors(self, wait_s: float = 30) -> list[int]:
        """Processes that the run left behind; before `end`, which clears them away."""
        with self._gone_on_failure():
            self.process.wait(timeout=HANGS_S)
        give_up = time.monotonic() + wait_s
        while (left := self._ours()) and time.monotonic() < give_up:
            time.sleep(0.1)
        return left

    def kill(self) -> None:
        """End all of it that still runs."""
        for pid in [self.process.pid, *self._ours()]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=60)

    @contextlib.contextmanager
    def _gone_on_failure(self) -> Iterator[None]:
        """A run without an end, which most of these are, would train on beside all tests that follow."""
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _ours(self) -> list[int]:
        """Processes of the launch, not those of another run in the same folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == self.process.pid:
                continue
            environ = _read(int(entry.name), "environ")
            ours = f"{_MARK}={self.mark}".encode() in environ
            if ours and any(word.startswith(b"PERFDOC_LAUNCH=") for word in environ):
                found.append(int(entry.name))
        return found


def _read(pid: int, of: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{of}").read_bytes().split(b"\0")
    except OSError:
        return []
