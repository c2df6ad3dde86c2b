"""Reads the rows of all ranks of a run as they are written."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from perfdoc.compare.runs import mfu
from perfdoc.profiling.logs import MAX_LINE_BYTES, Began, StepRecord, decoded
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.run_directory import ENDED, RunDirectory
from perfdoc.results import figures
from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.read import read_training_log
from perfdoc.watch.findings import of_a_hang
from perfdoc.watch.result import Finding, Watched
from perfdoc.watch.series import JobSeries, RankRows, job_series, of_a_log
from perfdoc.watch.verdict import watched

_FILE = re.compile(r"rank(0|[1-9][0-9]{0,6})\.jsonl")
_DECODER = msgspec.json.Decoder(StepRecord)
_QUIET_STEPS, _QUIET_NS, _QUIET_PAUSES = 100, 300_000_000_000, 3
"""A job hangs when no rank writes for so many steps, for so long, and for so many times its longest pause."""
MAX_RANKS = 1 << 16


@dataclass
class _File:
    inode: int = -1
    offset: int = 0
    stamp: tuple[int, int] = (-1, -1)


class FollowedRun:
    """A run directory whose ranks may still write."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError where it is no run directory."""
        try:
            self._run = RunDirectory.open(path)
        except TraceError as error:
            runs = ", ".join(steps.parent.name for steps in islice(path.glob("*/steps"), 3))
            remedy = f"It holds some: {runs}." if runs else "Give a folder of record() or perfdoc run."
            raise TraceError(error.path, error.what, remedy) from error
        self._files: dict[int, _File] = {}
        self._rows: dict[int, RankRows] = {}
        self.unreadable = 0
        """Lines that are no rows, the last one of a file that is being written apart."""
        self._judged: Watched | None = None
        self._last_ns = self._longest_ns = 0
        """When the last step ended, and the longest time from one to the next."""

    def refresh(self) -> bool:
        """Read what is new; whether anything is."""
        found = False
        with os.scandir(self._run.path / "steps") as entries:
            for entry in entries:
                match = _FILE.fullmatch(entry.name)
                if match is not None and len(self._files) <= MAX_RANKS:
                    found |= self._read(int(match[1]), entry)
        if found:
            self._judged = None
        return found

    def _read(self, rank: int, entry: os.DirEntry[str]) -> bool:
        known = self._files.setdefault(rank, _File())
        rows = self._rows.setdefault(rank, RankRows())
        try:
            now = entry.stat()
            if (now.st_ino, now.st_size) == known.stamp:
                return False
            with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123 - a thousand of them a second
                inode = os.fstat(file.fileno()).st_ino
                if inode != known.inode or now.st_size < known.offset:
                    # It was shortened: early rows are rows of means now.
                    rows.clear()
                    known.inode, known.offset = inode, 0
                file.seek(known.offset)
                content = file.readall()
        except OSError:
            return False  # moved at this moment, or of a file system that is gone: the next look tells
        end = content.rfind(b"\n") + 1
        if not end and len(content) > MAX_LINE_BYTES:
            end = len(content)
        known.offset += end
        known.stamp = (inode, known.offset if end == len(content) else now.st_size)
        self._take(rows, content[:end])
        return end > 0

    def _take(self, rows: RankRows, content: bytes) -> None:
        for line in content.split(b"\n"):
            try:
                if line.strip():
                    rows.add(decoded(line, _DECODER))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                self.unreadable += 1

    def series(self) -> JobSeries | None:
        """What was read until now."""
        return job_series(self._rows)

    def look(self) -> Watched:
        """Read what is new, and judge it; where nothing is, what was said last, and whether it hangs."""
        self.refresh()
        found = self._judged = self._judged or self._judge()
        hangs = [] if found.step_ns is None or self.has_ended else self._hang(found.step_ns)
        return replace(found, state="act", findings=[*hangs, *found.findings]) if hangs else found

    @property
    def has_ended(self) -> bool:
        """Whether something says that no step follows."""
        manifest = self._manifest()
        return (self._run.path / ENDED).exists() or (manifest is not None and manifest.status != "running")

    def _manifest(self) -> Manifest | None:
        try:
            return self._run.manifest()
        except TraceError:  # of another trainer
            return None

    def _hang(self, step_ns: int) -> list[Finding]:
        """By the later of the rows' clock and that of the files, which may be other machines'."""
        written = max(file.stat().st_mtime_ns for file in (self._run.path / "steps").glob("rank*.jsonl"))
        quiet = time.time_ns() - max(self._last_ns, written)
        if quiet < max(_QUIET_STEPS * step_ns, _QUIET_NS, _QUIET_PAUSES * self._longest_ns):
            return []
        last = {rank: int(rows.step[-1]) for rank, rows in self._rows.items() if len(rows.step)}
        newest = max(last.values())
        behind = sorted(rank for rank, step in last.items() if step < newest)
        is_full = shutil.disk_usage(self._run.path / "steps").free < MAX_LINE_BYTES
        return [of_a_hang(quiet, step_ns, newest, behind if 2 * len(behind) <= len(last) else [], is_full)]

    def _judge(self) -> Watched:
        manifest, series = self._manifest(), self.series()
        if series is not None:
            begins = series.start_ns
            self._last_ns = int(begins[-1]) + round(float(series.time_ns[-1]))
            self._longest_ns = int(np.diff(begins, prepend=begins[0])[-2_000:].max())
        command = series.began.command if series is not None and series.began is not None else ()
        found = watched(series, command=command if manifest is None else manifest.command)
        lost = []
        if self.unreadable:
            lost.append(f"{figures.plural(self.unreadable, 'line')} of the records cannot be read")
        gaps = sum(rows.missing() for rows in self._rows.values())
        if gaps:
            lost.append(f"{figures.plural(gaps, 'row')} between the first and the last of a rank are gone")
        found = replace(found, notes=[*found.notes, *lost])
        if found.step_ns is None or series is None or series.began is None:
            return found
        return _with_mfu(found, series.began, found.step_ns / 1e9)


def _with_mfu(found: Watched, began: Began, step_s: float) -> Watched:
    """By what a process says of its model; else what is not known, where its device has a peak."""
    flops = began.flops_per_step or (began.flops_per_token or 0) * (found.tokens_per_s or 0) * step_s
    of_each = flops / step_s / max(began.world_size, 1) if flops else None
    share, notes = mfu(of_each, began.peak_flops_per_second)
    if share is None and not notes and began.device == "cuda":
        why = began.flops_unknown or "nothing says the tokens of all ranks, as record(role=…) may"
        why = "no peak is listed for its GPU" if flops else why
        notes = (f"MFU is unknown: {why}; record(flops_per_step=…) gives it",)
    elif share is not None and began.flops_notes:
        notes = (f"MFU: {began.flops_notes}",)
    return replace(found, mfu_frac=share, notes=[*found.notes, *notes])


class FollowedLog:
    """The log of another trainer, read again when it has grown."""

    has_ended = False
    """Nothing says so."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError where it is no log."""
        self._path = path
        self._size: int | None = None
        self._judged = self.look()

    def look(self) -> Watched:
        """Read it where it grew, and judge it; where it did not, what was said last."""
        # Before it is read: it may grow meanwhile.
        size = self._path.stat().st_size if self._path.exists() else -1
        if size != self._size:
            self._judged = watched(of_a_log(read_training_log(self._path)))
            self._size = size
        return self._judged


def followed(path: Path) -> FollowedRun | FollowedLog:
    """What is at a path. Raises TraceError where it is neither a run nor a log."""
    return FollowedRun(path) if path.is_dir() else FollowedLog(path)
