"""What a rank says of its steps where people look: means of some steps, the verdict, the profiled window.

Verdict and analysis are made by a process beside the training, with the lowest priority; the training only
looks whether it has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.ledgers import Ledgers
from perfdoc.profiling.logs import Began, StepRecord, job_tokens
from perfdoc.profiling.nsys.command import is_attached
from perfdoc.profiling.own.sinks import Said, Sink, begun, harmless, opened
from perfdoc.profiling.process import own_rank

EVERY = 10
"""Steps that one point is the mean of, where the training loop does not say how often it logs."""
VERDICT_EVERY_S = 600.0
END_LIMIT_S = 60.0
"""What the end of a training waits for other ranks' traces, the analysis, the last verdict, and services."""
_NOT_INHERITED = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "PERFDOC_RECORD", "PERFDOC_WINDOW", "PERFDOC_LOG")
_OF_WINDOW = {"exposed_comm": "exposed_communication_seconds", "idle": "idle_seconds"}


def of_report(report: Path, step: int) -> Said:
    """A profiled window: its exposed communication by dimension and idle time by cause, of a step in the mean
    over ranks; the verdict; the page. report: the folder of the analysis.

    Raises OSError, and msgspec.DecodeError for a file that is no diagnosis.
    """
    found = msgspec.json.decode((report / "diagnosis.json").read_bytes(), type=Ledgers)
    figures = {}
    for leaf, ns in found.of_a_step().items():
        name, _, part = leaf.partition(".")
        if name in _OF_WINDOW and ns:
            figures[f"{_OF_WINDOW[name]}/{part}"] = ns / 1e9
    words = f"{found.verdict}\n{found.why}\n{report}"
    return Said(step=step, figures=figures, text=words, kind="report", page=report / "report.html")


@dataclass(kw_only=True)
class Telemetry:
    """Says what one rank knows. Which rank this is, is known when its first step begins."""

    services: Sequence[str] | None = None
    """By name; None: TensorBoard's files, and the framework's own loggers."""
    of_framework: Callable[[], Sequence[Sink]] = begun
    every: int = EVERY
    window: Path | None = None
    """The run directory of steps that all ranks profile meanwhile."""
    _began: Began | None = None
    _sinks: list[Sink] | None = None
    _rows: list[StepRecord] = field(default_factory=list)
    _beside: list[tuple[subprocess.Popen[str], Path | None, int]] = field(default_factory=list)
    """Processes, the folder of the report that they make, the step at which they began."""
    _safe: Callable[..., Any] = field(default_factory=lambda: harmless("steps", set()))
    _step = 0
    _leads = False
    """Whether this is rank 0, which alone starts processes: they read what all ranks wrote."""

    def begins(self, run: Path) -> bool:
        """A step begins; whether it is the first. run: the run directory."""
        if self._sinks is not None:
            return False
        self._run, self._judged_s = run, time.monotonic()
        rank, self._world_size = own_rank()
        self._leads, self._sinks = rank == 0, []
        self._safe(self._open)
        return True

    def _open(self) -> None:
        self._sinks = [] if self.services is not None else [*self.of_framework()]
        self._sinks += opened(self.services, self._run) if self._leads else []

    def add(self, row: StepRecord) -> None:
        """A step was written."""
        if self._sinks:
            self._safe(self._add, row)

    def _add(self, row: StepRecord) -> None:
        self._step = row.step
        if row.began is not None:
            self._began = row.began
            return  # it loads and compiles
        self._rows.append(row)
        if len(self._rows) >= self.every:
            self._say(Said(step=self._step, figures=self._figures()))
            self._beside = [one for one in self._beside if not self._passes_on(*one)]
            if self._traces() >= self._world_size:
                self._analyse()
            if not self._beside and time.monotonic() - self._judged_s >= VERDICT_EVERY_S:
                self._judged_s = time.monotonic()
                self._start("watch", str(self._run), "--once")

    def _say(self, said: Said) -> None:
        for sink in self._sinks or ():
            sink(said)

    def _figures(self) -> dict[str, float]:
        """Means of the last steps; steps under a profiler are left out."""
        rows = [row for row in self._rows if not row.profiled and row.duration_ns > 0]
        self._rows = []
        if not rows:
            return {}

        def mean(name: str, unit: float = 1) -> float | None:
            values = [getattr(row, name) for row in rows]
            return None if None in values else float(sum(values)) * unit / len(values)

        last, step_s = rows[-1], mean("duration_ns", 1e-9) or 0.0
        tokens, own_tokens = mean("tokens"), mean("rank_tokens")
        began, share = self._began, 0.0
        if tokens is None and own_tokens is not None:
            tokens = job_tokens([own_tokens], [began.role if began else {}], self._world_size)
        if began is not None and began.peak_flops_per_second:
            flops = began.flops_per_step or (began.flops_per_token or 0.0) * (tokens or 0.0)
            share = flops / step_s / self._world_size / began.peak_flops_per_second
        found = {
            "step_seconds": step_s,
            "memory_bytes": last.resident_bytes if last.allocated_bytes is None else last.allocated_bytes,
            "tokens_per_second": None if tokens is None else tokens / step_s,
            "rank_tokens_per_second": own_tokens / step_s if tokens is None and own_tokens else None,
            "mfu_ratio": share if 0 < share <= 1 else None,
            "wait_seconds": mean("wait_ns", 1e-9),
            "data_wait_seconds": mean("data_ns", 1e-9),
            "garbage_collection_seconds": mean("garbage_ns", 1e-9),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def _traces(self) -> int:
        return 0 if self.window is None or not self._leads else len([*(self.window / "traces").glob("rank*")])

    def _analyse(self) -> None:
        folder, self.window = str(self.window), None
        report = Path(folder) / "report"
        self._start("analyze", folder, "-o", str(report), "--jobs", "1", report=report)

    def _start(self, *words: str, report: Path | None = None) -> None:
        """A command of perfdoc's; report: the folder that it makes."""
        if is_attached() or not self._leads:
            return  # nsys would capture its process as well
        nice = ["nice", "-n", "19"] if shutil.which("nice") else []
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        process = subprocess.Popen(
            [*nice, sys.executable, "-m", "perfdoc", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**inherited, "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"},
            text=True,
            errors="replace",
        )
        self._beside.append((process, report, self._step))

    def _passes_on(self, process: subprocess.Popen[str], report: Path | None, step: int) -> bool:
        if process.poll() is None:
            return False
        words, _ = process.communicate()
        if process.returncode in (0, 1):  # else it failed, or there is too little to judge
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._say(of_report(report, step) if report else Said(step=step, text=words))
        return True

    def ends(self) -> None:
        """No step follows: the rest, the analysis where it was not made, and the last verdict."""
        if self._sinks:
            self._safe(self._end)
        self._sinks = []

    def _end(self) -> None:
        until = time.monotonic() + END_LIMIT_S
        # Ranks whose rows lie here will have their traces here; others have a disk of their own.
        here = len([*(self._run / "steps").glob("rank*.jsonl")])
        while 0 < self._traces() < min(here, self._world_size) and time.monotonic() < until:
            time.sleep(0.2)
        if self._traces():
            self._analyse()
        self._start("watch", str(self._run), "--once")
        for one in self._beside:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one[0].wait(max(until - time.monotonic(), 5))
            if not self._passes_on(*one):
                one[0].kill()
        self._say(Said(step=self._step, figures=self._figures(), last=True, until_s=until))
