"""Whether an Nsight capture holds the ranges that the run emitted, and if not, why."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.vocabulary import prefix_of

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


def check_capture(sqlite_path: Path, *, nvtx_version: str | None = None) -> CaptureCheck:
    """Count the vocabulary's ranges in an nsys SQLite export.

    `nvtx_version` is the version of the `nvtx` package that the run had (the manifest's `versions`).
    Raises CaptureError where the file is no nsys export.
    """
    try:
        with closing(sqlite3.connect(f"file:{quote(str(sqlite_path))}?mode=ro", uri=True)) as export:
            tables = {str(row[0]) for row in export.execute("SELECT name FROM sqlite_master")}
            if "StringIds" not in tables:
                raise CaptureError(
                    sqlite_path, "is no nsys export.", "Give an .sqlite file of `nsys export`."
                )
            names = export.execute(_NAMES).fetchall() if "NVTX_EVENTS" in tables else []
            refused = "DIAGNOSTIC_EVENT" in tables and export.execute(_REFUSED).fetchone()[0] > 0
    except sqlite3.Error as error:
        raise CaptureError(sqlite_path, f"cannot be read: {error}.", "Export it again.") from error
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
        )
    if "NVTX_EVENTS" not in tables or nvtx_version is None:
        remedy = "Capture with nvtx among --trace, and with the nvtx package installed."
    else:
        remedy = "Check that the profiled steps and ranks were reached while nsys was capturing."
    return CaptureCheck(ranges={}, problem="no range of the run was captured", remedy=remedy)
