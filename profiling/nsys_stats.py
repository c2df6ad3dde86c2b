"""Nsight Systems' own figures of a capture: its summary reports and its expert-system rules, as tables.

`nsys stats` and `nsys analyze` read an SQLite export with scripts of their own, and need no Python packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Command: TypeAlias = Literal["stats", "analyze"]

MAX_BYTES = 1 << 29
"""Largest answer that is read; a report with a row per range name can be long."""
TIMEOUT_S = 1800.0

_SELECT: Mapping[Command, str] = {"stats": "--report", "analyze": "--rule"}
_BARE = re.compile(rb'^(\s*"(?:Range|Name)": )(?!")([^\r\n]*?)(,?)(?=\r?$)', re.MULTILINE)
"""A name that looks like a number, or is `null`: nsys writes it without quotes, and `+1` so is no JSON."""


@dataclass(frozen=True, kw_only=True)
class NsysTable:
    """Rows of one report as nsys printed them, every value as text; or why there are none."""

    rows: Sequence[Mapping[str, str]]
    """By column title, such as `Total Time (ns)`."""
    missing: str = ""
    """Why nsys gave no rows; empty where the rows are its answer."""


def read_nsys_table(
    nsys: Path | str, sqlite: Path, report: str, *, command: Command = "stats", timeout_s: float = TIMEOUT_S
) -> NsysTable:
    """Run one report (`nvtx_sum`) or rule (`gpu_gaps:gap=0:rows=-1`) on an SQLite export.

    The export is opened by nsys through a link in a temporary folder, where everything that it writes goes:
    nothing appears beside the export. Whatever goes wrong is `missing`, in nsys's own words.
    """
    with tempfile.TemporaryDirectory(prefix="perfdoc-nsys-") as folder:
        capture = Path(folder) / "capture.sqlite"
        capture.symlink_to(sqlite.absolute())
        answers = Path(folder) / "answers"
        answers.mkdir()
        line = [str(nsys), command, _SELECT[command], report, "--format", "json"]
        said = ""
        try:
            said = _said([*line, "--output", str(answers / "a"), str(capture)], timeout_s)
            answer = next(answers.glob("*.json"), None)
            if answer is None:
                raise ValueError("no file")
            if answer.stat().st_size > MAX_BYTES:
                return NsysTable(rows=(), missing=f"nsys's answer is larger than {MAX_BYTES:,} bytes")
            rows = parse_json_table(answer.read_bytes())
        except subprocess.TimeoutExpired:
            return NsysTable(rows=(), missing=f"nsys {command} took longer than {timeout_s:.0f} s")
        except OSError as error:
            return NsysTable(rows=(), missing=f"nsys {command} cannot be run: {error.strerror}")
        except ValueError as error:
            return NsysTable(rows=(), missing=_without(folder, said) or f"nsys wrote no table: {error}")
    return NsysTable(rows=rows, missing="" if rows else _without(folder, said))


def parse_json_table(text: bytes) -> list[dict[str, str]]:
    """Rows of `--format json`. Raises ValueError where it is no list of flat objects.

    >>> parse_json_table(b'[{"Instances": 2, "Range": 1e3}]')
    [{'Instances': '2', 'Range': '1e3'}]
    """

    def quoted(match: re.Match[bytes]) -> bytes:
        return match[1] + json.dumps(match[2].decode(errors="replace")).encode() + match[3]

    found = json.loads(
        # Control characters in a name are written as they are.
        _BARE.sub(quoted, text).decode(errors="replace"), strict=False, parse_int=str, parse_float=str
    )  # fmt: skip
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise ValueError("it is no list of rows")
    return [{str(key): "" if value is None else str(value) for key, value in row.items()} for row in found]


def last_words(stdout: str, stderr: str) -> str:
    """What nsys says went wrong or was left out: one line, empty where it says nothing."""
    for mark in ("SKIPPED:", "ERROR:"):
        for line in f"{stderr}\n{stdout}".splitlines():
            if mark in line:
                return line.partition(mark)[2].strip().rstrip(".")[:300]
    return ""


def _said(line: Sequence[str], timeout_s: float) -> str:
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )
    said = last_words(done.stdout, done.stderr)
    return said or (f"nsys ended with code {done.returncode}" if done.returncode else "")


def _without(folder: str, said: str) -> str:
    return said.replace(f"{folder}/capture.sqlite", "the capture")
