"""Takes what nsys left behind into the run directory: under its final name, exported, checked."""

import contextlib
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.nsys.command import Nsys, export_sqlite
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.vocabulary import prefix_of
from perfdoc.profiling.whole_file import PART, move_into_place

_NAMES = """
SELECT coalesce(events.text, strings.value), count(*) FROM NVTX_EVENTS AS events
LEFT JOIN StringIds AS strings ON events.textId = strings.id
WHERE coalesce(events.text, strings.value) LIKE 'perfdoc.%' GROUP BY 1
"""
_REFUSED = "SELECT count(*) FROM DIAGNOSTIC_EVENT WHERE text LIKE 'NVTX payload extension is incompatible%'"


@dataclass(frozen=True, kw_only=True)
class CaptureCheck:
    """What an Nsight export holds of the vocabulary."""

    ranges: Mapping[str, int]
    """Rows by prefix of the vocabulary; a prefix without rows is not there."""
    problem: str | None
    """Why the ranges are missing; None where there are some."""
    remedy: str = ""
    refused: bool = False
    """Whether nsys refused the ranges of this version of nvtx."""


def check_capture(sqlite_path: Path, *, nvtx_version: str | None = None) -> CaptureCheck:
    """Count the vocabulary's ranges in an nsys SQLite export.

    `nvtx_version` is the version of the `nvtx` package that the run had (the manifest's `versions`).
    Raises TraceError where the file is no nsys export.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(sqlite_path))}?mode=ro", uri=True)) as export:
            tables = {str(row[0]) for row in export.execute("SELECT name FROM sqlite_master")}
            if "StringIds" not in tables:
                raise TraceError(sqlite_path, "is no nsys export.", "Give an .sqlite file of `nsys export`.")
            names = export.execute(_NAMES).fetchall() if "NVTX_EVENTS" in tables else []
            refused = "DIAGNOSTIC_EVENT" in tables and export.execute(_REFUSED).fetchone()[0] > 0
    except sqlite3.Error as error:
        raise TraceError(sqlite_path, f"cannot be read: {error}.", "Export it again.") from error
    counts: Counter[str] = Counter()
    for name, count in names:
        if (prefix := prefix_of(str(name))) is not None:
            counts[prefix] += int(count)
    if counts:
        return CaptureCheck(ranges=dict(counts), problem=None)
    package = "the nvtx package" if nvtx_version is None else f"nvtx {nvtx_version}"
    if refused:
        return CaptureCheck(
            ranges={},
            problem=f"no range of the run was captured: nvtx version incompatible with this nsys ({package})",
            remedy="Install nvtx==0.2.11, or use a newer nsys.",
            refused=True,
        )
    if "NVTX_EVENTS" not in tables or nvtx_version is None:
        remedy = "Capture with nvtx among --trace, and with the nvtx package installed."
    else:
        remedy = "Check that the profiled steps and ranks were reached while nsys was capturing."
    return CaptureCheck(ranges={}, problem="no range of the run was captured", remedy=remedy)


UNFINISHED = f"{PART}nsys"
"""Folder in `traces/` that nsys writes to while the run goes on; see `unfinished_folder`."""
LEFT_OVER = "unfinished"
"""Folder in `traces/` for what nsys began and did not finish."""
LOGS = "logs"
"""Folder of the run directory for what each rank's nsys wrote on standard output."""
MAX_WORDS = 200
"""Characters of nsys's output that are repeated."""
EXPORTS_AT_ONCE = 4
"""An export takes one core, and up to a few times the report's size of memory."""
_FULL_BYTES = 4 << 20
"""With less free space than this, a missing report is blamed on the full disk: it takes some megabytes."""
_REPORT = re.compile(r"rank(0|[1-9][0-9]{0,6})\.nsys-rep")
_OF_RANK = re.compile(r"rank(0|[1-9][0-9]{0,6})\..+")


@dataclass(frozen=True, kw_only=True)
class CollectedReport:
    """One rank's report after the run."""

    rank: int
    report: Path | None
    """The .nsys-rep in `traces/`; None where nsys left none."""
    sqlite: Path | None = None
    """Its export; None where there is none."""
    ranges: Mapping[str, int] = field(default_factory=dict)
    """Rows of our vocabulary by prefix."""
    problem: str | None = None
    """One line with its remedy, to be shown to the user; None where all is well."""


def unfinished_folder(run: RunDirectory, own: int | None = None) -> Path:
    """What nsys writes to. own: the rank whose folder it is alone, where each rank collects by itself: nsys
    writes its report at its end, and the folder is not to be taken away under the nsys of another rank."""
    return run.path / "traces" / (UNFINISHED if own is None else f"{UNFINISHED}-rank{own}")


def reports_folder(run: RunDirectory, own: int | None = None) -> Path:
    """The `unfinished_folder`, to give to nsys; made where it is missing."""
    folder = unfinished_folder(run, own)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def logs_folder(run: RunDirectory) -> Path:
    """The folder for what nsys writes on standard output."""
    return run.path / LOGS


def collect_reports(
    run: RunDirectory,
    nsys: Nsys,
    *,
    ranks: Collection[int] | None = None,
    nvtx_version: str | None = None,
    marked: bool = True,
    own: int | None = None,
) -> list[CollectedReport]:
    """Take the reports of a run that is over, however it ended: move, export and check each.

    `ranks`: those whose reports should be there; None: those that are. A report that is missing, cannot be
    exported or, with `marked`, holds no range of ours is a row with a `problem`; the others are taken all the
    same. What else nsys left of these ranks is moved to `traces/unfinished/`, where it can be seen.
    `own`: as in `unfinished_folder`.
    """
    folder = unfinished_folder(run, own)
    found = _found(folder)
    wanted = sorted(found if ranks is None else ranks)
    with ThreadPoolExecutor(max_workers=EXPORTS_AT_ONCE) as pool:
        collected = list(
            pool.map(lambda n: _collect(run, nsys, n, folder, found.get(n), nvtx_version, marked), wanted)
        )
    _show_left_over(folder, set(wanted))
    return collected


def reported_ranks(run: RunDirectory) -> set[int]:
    """Ranks whose nsys has written a report that was not collected yet."""
    return set(_found(unfinished_folder(run)))


def last_words(run: RunDirectory, rank: int) -> str | None:
    """The last line that a rank's nsys wrote on standard output; None where there is none."""
    with contextlib.suppress(OSError):
        text = (logs_folder(run) / f"rank{rank}.txt").read_text(errors="replace")
        # Progress bars are redrawn after a carriage return.
        if lines := [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]:
            return lines[-1][:MAX_WORDS]
    return None


def _found(folder: Path) -> dict[int, Path]:
    return {
        int(match[1]): file
        for file in folder.glob("*.nsys-rep")
        if (match := _REPORT.fullmatch(file.name)) and file.is_file()
    }


def _collect(
    run: RunDirectory,
    nsys: Nsys,
    rank: int,
    folder: Path,
    found: Path | None,
    nvtx_version: str | None,
    marked: bool,
) -> CollectedReport:
    if found is None:
        return CollectedReport(rank=rank, report=None, problem=_why_none(run, rank, folder))
    report, sqlite = run.trace_path(rank, "nsys-rep"), run.trace_path(rank, "sqlite")
    try:
        move_into_place(found, report)
    except (TraceError, OSError) as error:
        return CollectedReport(rank=rank, report=None, problem=_line(found, error))
    try:
        export_sqlite(nsys.path, report, sqlite)
        check = check_capture(sqlite, nvtx_version=nvtx_version)
    except (TraceError, OSError) as error:
        return CollectedReport(rank=rank, report=report, problem=_line(report, error))
    lacking = check.problem is not None and (marked or check.refused)
    return CollectedReport(
        rank=rank,
        report=report,
        sqlite=sqlite,
        ranges=check.ranges,
        problem=f"{check.problem}. {check.remedy}" if lacking else None,
    )


def _why_none(run: RunDirectory, rank: int, folder: Path) -> str:
    if (folder / f"rank{rank}.qdstrm").exists():
        return (
            f"nsys left no report, but traces/{LEFT_OVER}/rank{rank}.qdstrm, which it could not import. "
            "Debian's package lacks a link for that: host-linux-x64 beside target-linux-x64 (see .ci/run)."
        )
    if (free := shutil.disk_usage(run.path).free) < _FULL_BYTES:
        return f"nsys left no report: only {free // 1000} kB are free where {run.path} lies."
    words = last_words(run, rank)
    return "nsys left no report: " + (
        f"its last message: {words}" if words else "it was killed, or the disk is full."
    )


def _line(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}."
    return str(error)


def _show_left_over(folder: Path, ranks: set[int]) -> None:
    """Move what is left of some ranks to where it can be seen, and take the folder away if it is empty."""
    with contextlib.suppress(OSError):  # Not there, or another machine still writes to it.
        for file in sorted(folder.iterdir()):
            match = _OF_RANK.fullmatch(file.name)
            if match and int(match[1]) in ranks:
                shown = folder.with_name(LEFT_OVER)
                shown.mkdir(exist_ok=True)
                file.rename(shown / file.name)
        folder.rmdir()
