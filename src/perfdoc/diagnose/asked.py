"""Request of an analysis, from the words of a command line. Imports nothing that measures."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import find_captures
from perfdoc.traces.memory.read import is_snapshot_name

if TYPE_CHECKING:
    from perfdoc.analyzers.memory.snapshot import MemoryFiles

_UNITS_NS = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class UserError(ValueError):
    """An error that the user can correct; shown as one line."""


def parse_request(
    paths: Sequence[str],
    *,
    window: str | None = None,
    step_range: str | None = None,
    data_range: str | None = None,
    comm_kernel: str | None = None,
    range_table: Sequence[str] | None = None,
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
        step_pattern=parse_pattern("--step-range", step_range),
        data_pattern=parse_pattern("--data-range", data_range),
        table_patterns=table_patterns(range_table or ()),
    )
    communicates = parse_pattern("--comm-kernel", comm_kernel)
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
    from perfdoc.diagnose.job import holds_settings

    said = given_facts(settings, None, model_config)  # what is wrong with the words is no fault of the file
    try:
        return given_facts(settings, config, model_config)
    except ValueError:
        if not holds_settings(config):
            raise
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


def parse_pattern(option: str, text: str | None) -> re.Pattern[str] | None:
    """A regular expression; None where none was given. Raises UserError."""
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{option} {text!r}: is not a regular expression: {error}.") from error


_MAX_PATTERNS = 32
_MAX_PATTERN = 1000


def table_patterns(texts: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """What `--range-table` names. Raises UserError, of a pattern that could take for ever too."""
    if len(texts) > _MAX_PATTERNS:
        raise UserError(f"--range-table: {len(texts):,} patterns are more than {_MAX_PATTERNS}.")
    found = []
    for text in texts:
        if len(text) > _MAX_PATTERN:
            raise UserError(f"--range-table: a pattern is longer than {_MAX_PATTERN:,} characters.")
        pattern = parse_pattern("--range-table", text)
        assert pattern is not None
        if why := too_slow(text):
            raise UserError(f"--range-table {text!r} may take for ever: {why}. Write it simpler.")
        found.append(pattern)
    return tuple(found)


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


MAX_BITS = 32.0
"""A pattern may try 2^32 ways on the worst name at the worst, and does so far faster than it sounds: most of
them are ruled out together. Four open-ended repeats and some alternatives."""
_OPEN_BITS = 7.0
"""Of an open-ended repeat: it may end at each of the 128 characters that are matched."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


class _NestedError(ValueError):
    """A repeat holds something that can match in several ways: the ways multiply with every round."""


def too_slow(text: str) -> str:
    """Why a regular expression may take for ever on a name; empty where it does not.

    >>> too_slow("layer.*(fwd|bwd)"), too_slow("(a+)+$")
    ('', 'it repeats what can match in several ways')
    """
    parser: Any = getattr(re, "_parser", None)
    if parser is None:  # a Python that hides it elsewhere
        return ""
    try:
        bits = _bits(parser.parse(text), repeated=False)
    except _NestedError:
        return "it repeats what can match in several ways"
    except RecursionError:
        return "it is nested too deep"
    return "" if bits <= MAX_BITS else "it has too many open-ended repeats and alternatives"


def _bits(part: Any, *, repeated: bool) -> float:
    """Logarithm of the number of ways that a parsed expression can match one text. repeated: it stands in a
    repeat, where there may be one way alone. Raises _NestedError."""
    total = 0.0
    for operator, argument in part:
        name = str(operator)
        own = 0.0
        inner: list[Any] = []
        inside = repeated
        if name in _REPEATS:
            low, high, body = argument
            own = min(math.log2(int(high) - int(low) + 1), _OPEN_BITS)
            inner, inside = [body], repeated or int(high) > 1
        elif name == "BRANCH":
            inner = list(argument[1])
            own = math.log2(len(inner))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP", "ASSERT", "ASSERT_NOT", "GROUPREF_EXISTS"):
            parts = argument if isinstance(argument, tuple) else (argument,)
            inner = [p for p in parts if hasattr(p, "data")]
        if own and repeated:
            raise _NestedError
        total += own + sum(_bits(p, repeated=inside) for p in inner)
    return total
