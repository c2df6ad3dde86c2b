"""Request of an analysis, from the words of a command line. Imports nothing that measures."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import find_captures
from perfdoc.traces.memory import is_snapshot_name

if TYPE_CHECKING:
    from perfdoc.analyzers.memory.snapshot import MemoryFiles

_UNITS_NS = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def parse_request(
    paths: Sequence[str],
    *,
    window: str | None = None,
    step_range: str | None = None,
    data_range: str | None = None,
    comm_kernel: str | None = None,
    settings: Sequence[str] | None = None,
    config: Path | None = None,
    model_config: Path | None = None,
    replay: bool = True,
    leave_out: bool = False,
    jobs: int | None = None,
) -> AnalysisRequest:
    """A request from the words of a command line, checked before anything is read.

    paths: captures, memory snapshots and `key=value` of the job; without any the request has no captures.
    jobs: default: one per core. Raises UserError.
    """
    request = replace(
        window_request(window) if window else WindowRequest(),
        step_pattern=parse_pattern("--step-range", step_range) if step_range is not None else None,
        data_pattern=parse_pattern("--data-range", data_range) if data_range is not None else None,
    )
    communicates = parse_pattern("--comm-kernel", comm_kernel) if comm_kernel is not None else None
    paths, words = split_settings(paths)
    try:
        given = facts_given([*(settings or ()), *words], config, model_config)
        snapshots = [Path(p) for p in paths if is_snapshot_name(p) and Path(p).is_file()]
        traces = [p for p in paths if Path(p) not in snapshots]
        captures = find_captures(traces, leave_out=leave_out) if traces else []
    except ValueError as error:  # TraceError is one
        raise UserError(str(error)) from error
    return AnalysisRequest(
        captures=captures,
        memory=memory_files(snapshots, captures),
        window=request,
        comm_kernel=communicates,
        given=given,
        config=config,
        replay=replay,
        leave_out=leave_out,
        jobs=jobs or os.cpu_count() or 1,
    )


def facts_given(settings: Sequence[str], config: Path | None, model_config: Path | None = None) -> JobFacts:
    """Facts of the words and the file. A file without facts is fine where it holds settings that rules read,
    as a script of flags does. Raises ValueError."""
    if config is None:
        return given_facts(settings, None, model_config)
    from perfdoc.diagnose.job import settings_of_file, stated_by

    said = given_facts(settings, None, model_config)  # what is wrong with the words is no fault of the file
    found = settings_of_file(config)
    for stated in stated_by(found):
        try:
            return given_facts(settings, config, model_config, stated)
        except ValueError as error:
            wrong = error
    if found is None or not (found.values or found.unknown):
        raise wrong
    return said


def window_request(text: str) -> WindowRequest:
    """What `--window` names: two times, ranges of a name, or the whole capture. Raises UserError."""
    if text == "capture":
        return WindowRequest(whole_capture=True)
    if text.startswith("range:"):
        return WindowRequest(range_pattern=parse_pattern("--window range:", text.removeprefix("range:")))
    parts = text.split(",")
    if len(parts) != 2:
        raise UserError(f"--window {text!r}: give START,END (such as 4.2s,4300ms), range:REGEX or capture.")
    start, end = (_time_ns(p) for p in parts)
    if end <= start:
        raise UserError(f"--window {text!r}: the end does not lie after the start.")
    return WindowRequest(bounds_ns=(start, end))


def _time_ns(text: str) -> int:
    """Exact integer nanoseconds of a decimal with a unit."""
    match = re.fullmatch(r"\s*(\d{1,19})(?:\.(\d{1,9}))?\s*(ns|us|µs|ms|s|)\s*", text)
    if match is None:
        raise UserError(f"--window: {text!r} is not a time. Write 1234567890, 1234.5ms or 1.2s.")
    whole, fraction, unit = match[1], match[2] or "", _UNITS_NS[match[3]]
    scaled = int(whole + fraction) * unit
    if scaled % 10 ** len(fraction):
        raise UserError(f"--window: {text!r} is finer than a nanosecond.")
    value: int = scaled // 10 ** len(fraction)
    if value >= 2**62:
        raise UserError(f"--window: {text!r} is out of range.")
    return value


def parse_pattern(option: str, text: str) -> re.Pattern[str]:
    """A regular expression. Raises UserError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{option} {text!r}: is not a regular expression: {error}.") from error


_SETTING = re.compile(r"[a-z_]{1,64}=[^/]{1,200}")


def split_settings(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths, and the words among them that are settings: `key=value`, and no file of that name.

    Where nothing else is there, they are paths: whoever reads them says that they do not exist.

    >>> split_settings(["no-such.sqlite", "pp=4"])
    (['no-such.sqlite'], ['pp=4'])
    """
    words = [path for path in paths if _SETTING.fullmatch(path) and not Path(path).exists()]
    others = [path for path in paths if path not in words]
    return (others, words) if others else (words, [])


_MOMENTS = (".start.pickle", ".peak.pickle")
"""Without a history: what they hold is in the snapshot at the end of the window."""


def memory_files(snapshots: Sequence[Path], captures: Sequence[Path]) -> list[MemoryFiles]:
    """Files of each rank of the run directories that captures lie in, then the snapshots given by path."""
    folders = {c.resolve().parent for c in captures}
    runs = sorted(f.parent for f in folders if f.name == "traces" and (f.parent / "memory").is_dir())
    if not runs and not snapshots:
        return []
    from perfdoc.analyzers.memory.snapshot import MemoryFiles

    found: list[MemoryFiles] = []
    for run in runs:
        for rank, files in sorted(RunDirectory(run).files_by_rank("memory").items()):
            pickles = [f for f in files if f.suffix == ".pickle" and not f.name.endswith(_MOMENTS)]
            samples = next((f for f in files if f.suffix == ".jsonl"), None)
            if pickles or samples is not None:
                found.append(MemoryFiles(rank=rank, snapshots=pickles, samples=samples))
    return found + [MemoryFiles(rank=None, snapshots=[p], samples=None) for p in snapshots]
