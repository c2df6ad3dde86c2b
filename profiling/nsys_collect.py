"""Takes what nsys left behind into the run directory: exported, checked, under its final name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfdoc.profiling.capture_check import CaptureCheck, check_capture
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys import Nsys, export_sqlite
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import move_into_place

UNFINISHED = ".part-nsys"
"""Folder in `traces/` that nsys writes to while the run goes on."""
_REPORT = re.compile(r"rank(0|[1-9][0-9]{0,6})\.nsys-rep")


@dataclass(frozen=True, kw_only=True)
class CollectedReport:
    """One rank's report after the run."""

    rank: int
    report: Path
    sqlite: Path
    check: CaptureCheck
    """What it holds; `check.problem` is to be shown to the user."""


def reports_folder(run: RunDirectory) -> Path:
    """The folder to give to `nsys_per_rank`; made where it is missing."""
    folder = run.path / "traces" / UNFINISHED
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def collect_reports(
    run: RunDirectory, nsys: Nsys, *, nvtx_version: str | None = None
) -> list[CollectedReport]:
    """Export every report of a run that is over, check it for our ranges, and move both into `traces/`.

    Raises CaptureError where nsys left no report at all, or one cannot be exported; reports that were
    taken before that stay.
    """
    folder = run.path / "traces" / UNFINISHED
    found = {
        int(match[1]): file for file in folder.glob("*.nsys-rep") if (match := _REPORT.fullmatch(file.name))
    }
    if not found:
        remedy = "The run ended before nsys could write one; its output above says why."
        raise CaptureError(folder, "nsys left no report.", remedy)
    collected: list[CollectedReport] = []
    for rank in sorted(found):
        report, sqlite = run.trace_path(rank, "nsys-rep"), run.trace_path(rank, "sqlite")
        export_sqlite(nsys.path, found[rank], sqlite)
        move_into_place(found[rank], report)
        check = check_capture(sqlite, nvtx_version=nvtx_version)
        collected.append(CollectedReport(rank=rank, report=report, sqlite=sqlite, check=check))
    if not any(folder.iterdir()):
        folder.rmdir()
    return collected
