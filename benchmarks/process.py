"""What a process costs. Standard library only: a child's peak memory counts that of whoever forked it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process cost."""

    wall_s: float
    cpu_s: float
    peak_mb: float

    @staticmethod
    def best(runs: Sequence[Run]) -> Run:
        """The least times, which other work on the machine only adds to, and the largest peak."""
        return Run(
            wall_s=min(r.wall_s for r in runs),
            cpu_s=min(r.cpu_s for r in runs),
            peak_mb=max(r.peak_mb for r in runs),
        )

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s, {self.cpu_s:.1f} s of CPU, peak {self.peak_mb:,.0f} MB"


def timed(
    command: Sequence[str], environment: Mapping[str, str] | None = None, printed: Path | None = None
) -> Run:
    """Run a command to its end. printed: where what it prints goes.

    Raises CalledProcessError with its messages where it fails.
    """
    with ExitStack() as files:
        messages = files.enter_context(tempfile.TemporaryFile())
        out = subprocess.DEVNULL if printed is None else files.enter_context(printed.open("wb"))
        begin = time.perf_counter()
        # The largest of the command's processes, as far as it waited for its workers; RUSAGE_CHILDREN would
        # give the largest of all commands so far.
        child = subprocess.Popen(command, stdout=out, stderr=messages, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            messages.seek(0)
            text = messages.read().decode("utf-8", "replace")
            error = subprocess.CalledProcessError(child.returncode, command, stderr=text)
            error.add_note(text)
            raise error
    to_mb = 1e6 if sys.platform == "darwin" else 1e3
    return Run(wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, peak_mb=usage.ru_maxrss / to_mb)


def children(pid: int) -> list[int]:
    """Of all its threads: each lists those that it started itself. Empty where it has ended."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:  # the thread has just ended
            continue
    return found


def descendants(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for child in children(pid):
        yield from descendants(child)
