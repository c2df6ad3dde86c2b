"""From what a user types to captures: finding the files, telling formats apart, reading one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from perfdoc.patterns import pattern_of
from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.foreign import packed_in, what_is
from perfdoc.traces.formats import accepted, format_of, is_parquet_folder, named_as, tool_of
from perfdoc.traces.model import Trace
from perfdoc.traces.summary_file import SUFFIX, is_summary


def find_captures(paths: Sequence[str], *, leave_out: bool = False) -> list[Path]:
    """Capture files behind files, folders and glob patterns, in natural order, each once.

    A folder stands for the captures in it, also where a pattern matches it. Files of one name in one folder
    are one capture: an export stands for its .nsys-rep, a .sqlite for the parquetdir beside it, and of
    x.json and x.json.gz the newer counts (the plain one where they are equally old). A trace stands for its
    summary: it answers whatever is asked, and is never out of date; but not a .nsys-rep without nsys to read
    it.

    leave_out: of several, those that are no captures are in the list if any is one: whoever reads them leaves
    them out.

    Raises TraceError where a path leads to none, to what is no regular file, or where the formats are mixed.
    """
    found: dict[Path, Path] = {}
    for text in paths:
        for match in _behind(text):
            found.setdefault(_real(match), match)
    captures = _one_of_each(list(found.values()))
    tools: dict[str, Path] = {}
    unknown: list[TraceError] = []
    for capture in captures:
        try:
            _require_readable(capture)
            tools.setdefault(tool_of(capture), capture)
        except TraceError as error:
            unknown.append(error)
            if not leave_out:
                raise
    if unknown and not tools:
        raise unknown[0]
    if len(tools) > 1:
        one, other = sorted(tools, reverse=True)[:2]
        raise TraceError(
            tools[one],
            f"is a {one} trace, but {tools[other]} is a {other} one: they cannot be mixed in one analysis.",
            "Analyse them one after the other.",
        )
    return captures


def _behind(text: str) -> list[Path]:
    """What one argument stands for. Raises TraceError where that is nothing."""
    if not text:  # which Path takes for the current folder
        raise TraceError("''", "is no path.", "Is a variable of the shell empty?")
    path = Path(text)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            path.stat()  # Path.exists hides from Python 3.14 on why it fails
        if path.is_dir():
            return _in_folder(path)
        if path.exists():
            return [path]
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    import glob  # Path.glob knows no absolute patterns

    if not glob.has_magic(text):
        raise TraceError(path, "does not exist.", "Check the path.")
    matches = sorted(map(Path, glob.glob(text, recursive=True)), key=_natural)  # noqa: PTH207
    if not matches:
        raise TraceError(path, "matches no file.", "Check the pattern.")
    folders = {match: _captures_in(match) for match in matches if match.is_dir()}
    captures = [c for match in matches for c in folders.get(match, [match])]
    if not captures:
        raise TraceError(path, "matches only folders without traces.", accepted())
    return captures


def _in_folder(folder: Path) -> list[Path]:
    captures = _captures_in(folder)
    if not captures:
        _require_profiled(folder)
        if inner := _inner(folder) or [deep for child in _folders(folder)[-_FEW:] for deep in _inner(child)]:
            remedy = f"Give one job's: perfdoc analyze {shlex.quote(str(inner[-1]))}"
            if len(_captures_in(inner[-1])) == 1 < len(inner):
                remedy = f"If each holds a rank: perfdoc analyze {shlex.quote(str(inner[-1].parent))}/*"
            words = f"is a folder without traces, but {inner[-1].relative_to(folder)} in it has some."
            raise TraceError(folder, words, remedy)
        if (told := what_is(b"ARROW1", "")) and any(_TABLE.match(f.name) for f in folder.glob("*.arrow")):
            raise TraceError(folder, *told)
        if (told := packed_in(folder)) is not None:
            raise TraceError(folder, f"is a folder without traces, but {told[0]}", told[1])
        raise TraceError(folder, "is a folder without traces.", accepted())
    return captures


_TABLE = pattern_of(r"StringIds\.|CUPTI_ACTIVITY_|NVTX_EVENTS\.|(TARGET|META|ENUM)_")
_LOOKED_INTO, _FEW = 64, 8
"""Folders of a folder; and of these, where none of them holds traces itself."""


def _inner(folder: Path) -> list[Path]:
    """Folders of a folder that hold traces, in natural order, of the last that are looked into: torchtitan
    makes one for each profiled iteration."""
    found: list[Path] = []
    for child in _folders(folder)[-_LOOKED_INTO:]:
        with contextlib.suppress(TraceError):  # one that cannot be listed hides no other
            found += [child] if _captures_in(child) else []
    return found


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted((child for child in folder.iterdir() if child.is_dir()), key=_natural)
    return []


def _require_profiled(folder: Path) -> None:
    """Raise TraceError where it is the directory of a run without a profiler, or the folder of its traces."""
    from perfdoc.profiling.manifest import read_manifest

    real = _real(folder)
    run = real.parent if real.name == "traces" else real
    if not (run / "run.json").is_file():
        return
    try:
        profile = read_manifest(run / "run.json").profile
    except TraceError:  # none of perfdoc's
        return
    if profile.profiler == "none":
        raise TraceError(
            folder,
            f"is a run that was not profiled ({profile.reason}), so it holds no traces.",
            "Run it again with --profiler torch or nsys.",
        )


def _real(path: Path) -> Path:
    """Without symbolic links; Path.resolve raises where they go in a circle."""
    return Path(os.path.realpath(path))


def _one_of_each(captures: Sequence[Path]) -> list[Path]:
    """Without the other forms of one capture: see find_captures."""
    forms: dict[tuple[Path, str, str], list[Path]] = {}
    for capture in captures:
        forms.setdefault(_identity(capture), []).append(capture)
    kept = {max(same, key=_preference) for same in forms.values()}
    return [c for c in captures if c in kept]


def _identity(capture: Path) -> tuple[Path, str, str]:
    """Folder, family and name without what tells one form of a capture from another."""
    folder = _real(capture).parent
    if capture.suffix == SUFFIX and (tool := _summarized(capture)):
        return folder, tool, capture.stem
    of = named_as(capture)
    return (folder, "", capture.name) if of is None else (folder, of.tool, of.stem(capture) or "")


def _summarized(path: Path) -> str:
    """Which profiler wrote the trace of a summary; empty where that cannot be told."""
    try:
        return tool_of(path) if is_summary(path) else ""
    except TraceError:
        return ""


def _preference(capture: Path) -> tuple[int, int, int]:
    """The larger, the better."""
    if capture.suffix == SUFFIX:
        return (1, 0, 0)
    of = named_as(capture)
    return (2, 0, 0) if of is None else of.preference(capture)


def _require_readable(capture: Path) -> None:
    """Refuse pipes and devices before anything is opened. Raises TraceError."""
    if os.path.isdir(capture):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        for table in capture.glob("*.parquet"):
            require_regular(table)
    else:
        require_regular(capture)


def read_trace(path: Path) -> Trace:
    """Read one capture, whatever its format. Raises TraceError."""
    _require_readable(path)
    return format_of(path).read(path)


def content_sha256(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and hashes of its Parquet files.

    Raises TraceError for what is no file.
    """
    if path.is_dir():
        parts = [f"{p.name} {content_sha256(p)}" for p in sorted(path.glob("*.parquet"))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_size(path: Path) -> int:
    """Bytes of a capture; of a folder, of its Parquet files."""
    return sum(p.stat().st_size for p in (path.glob("*.parquet") if path.is_dir() else [path]))


def _captures_in(folder: Path) -> list[Path]:
    """A parquetdir itself, else captures directly in a folder, else in its `traces/` (a run directory).

    Pipes and devices of a capture's name are listed, for whoever checks them to refuse.
    """
    if is_parquet_folder(folder):
        return [folder]
    try:
        children = sorted(folder.iterdir(), key=_natural)
    except OSError as error:
        raise TraceError(folder, f"cannot be listed: {error.strerror}.") from error
    captures = [p for p in children if _is_capture(p)]
    if not captures and (folder / "traces").is_dir():
        return _captures_in(folder / "traces")
    return _one_of_each(captures)


def _is_capture(path: Path) -> bool:
    """Whether a child of a folder is a capture by its name, and a JSON file by its beginning too."""
    if path.suffix == SUFFIX and not path.is_dir():
        return True
    of = named_as(path)
    return of is not None and of.is_capture(path)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """rank2 before rank10."""
    return [
        (0, int(t), "") if t.isdecimal() else (1, 0, t) for t in pattern_of(r"(\d+)").split(str(path)) if t
    ]
