"""Nsight Systems' own figures, as tables: its summary reports, its expert-system rules and its recipes.

`nsys stats` and `nsys analyze` read an SQLite export with scripts of their own, and need no Python packages.

`nsys recipe` starts the first `python3` on PATH with the package `nsys_recipe` of its installation, and that
Python must have the package's requirements (numpy, pandas, psutil, pyarrow). docs/nsight.md says more.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from perfdoc.profiling.errors import CaptureError

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
        raise ValueError("it is not a list of rows")
    return [{str(key): "" if value is None else str(value) for key, value in row.items()} for row in found]


def last_words(stdout: str, stderr: str) -> str:
    """What nsys says went wrong or was left out: one line, empty where it says nothing."""
    for mark in ("SKIPPED:", "ERROR:"):
        for line in f"{stderr}\n{stdout}".splitlines():
            if mark in line:
                return line.partition(mark)[2].strip().rstrip(".")[:300]
    return ""


def _ran(
    line: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        env=env,
        timeout=timeout_s,
        check=False,
    )


def _said(line: Sequence[str], timeout_s: float) -> str:
    done = _ran(line, timeout_s)
    said = last_words(done.stdout, done.stderr)
    return said or (f"nsys ended with code {done.returncode}" if done.returncode else "")


def _without(folder: str, said: str) -> str:
    return said.replace(f"{folder}/capture.sqlite", "the capture")


_PACKAGE = Path("python", "packages", "nsys_recipe")
_ASK_TIMEOUT_S = 60.0
_LEVELS_UP = 4
"""From the program (`bin/nsys`, `target-linux-x64/nsys`) to the folder of the installation, generously."""


def recipes_folder(nsys: Path | str) -> Path:
    """The folder with a recipe per sub-folder of the installation that `nsys` belongs to.

    `nsys` is the program, a wrapper script around it, or the folder of the installation.
    Raises CaptureError where that installation has no recipes: 2022.4 did not know them, and some
    packages leave them out.
    """
    path = Path(nsys)
    package = _beside(path) or (None if path.is_dir() else _as_nsys_says(path))
    if package is None or not (package / "recipes").is_dir():
        raise CaptureError(
            path,
            "this nsys has no recipes.",
            "Nsight Systems has them in python/packages/nsys_recipe (2023.4 does, 2022.4 does not).",
        )
    return package / "recipes"


def run_recipe(
    nsys: Path | str, report: Path, recipe: str, table: str, *, timeout_s: float = TIMEOUT_S
) -> NsysTable:
    """Run one of Nsight's recipes on one .nsys-rep and read a CSV file of its output (`grouped_trace.csv`).

    Recipes export tables beside the report, so they see it through a link in a temporary folder.
    Whatever goes wrong is `missing`, in nsys's own words.
    """
    with tempfile.TemporaryDirectory(prefix="perfdoc-nsys-") as folder:
        link, output = Path(folder) / "capture.nsys-rep", Path(folder) / "output"
        link.symlink_to(report.absolute())
        line = [str(nsys), "recipe", recipe, "--csv", "--input", str(link), "--output", str(output)]
        try:
            done = _ran(line, timeout_s)
            answer = output / table
            if not answer.is_file():
                said = _reason(done).replace(folder, "…")
                return NsysTable(rows=(), missing=f"nsys recipe {recipe}: {said}")
            if answer.stat().st_size > MAX_BYTES:
                return NsysTable(rows=(), missing=f"the answer is larger than {MAX_BYTES:,} bytes")
            return NsysTable(rows=parse_csv_table(answer.read_text(errors="replace")))
        except subprocess.TimeoutExpired:
            return NsysTable(rows=(), missing=f"nsys recipe {recipe} took longer than {timeout_s:.0f} s")
        except OSError as error:
            return NsysTable(rows=(), missing=f"nsys recipe {recipe} cannot be run: {error.strerror}")


def parse_csv_table(text: str) -> list[dict[str, str]]:
    """Rows of a CSV file with a head line, every value as text; what a short row lacks is empty."""
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
    return [{str(key): str(value) for key, value in row.items() if key is not None} for row in reader]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why a recipe left no table. A Python error ends the output with its own words."""
    said = last_words(done.stdout, done.stderr)
    if said or not done.returncode:
        return said or "it found nothing"
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"it ended with code {done.returncode}"


def _beside(path: Path) -> Path | None:
    """The package in the folders around a program, links followed; None for a wrapper far away."""
    real = Path(os.path.realpath(path))
    above = [real, *real.parents[:_LEVELS_UP]] if real.is_dir() else list(real.parents[:_LEVELS_UP])
    for folder in above:
        for place in (folder, *sorted(folder.glob("target-linux-*"))):
            if (place / _PACKAGE).is_dir():
                return place / _PACKAGE
    return None


def _as_nsys_says(nsys: Path) -> Path | None:
    """Let nsys start a `python3` that only tells where it was sent for packages."""
    with tempfile.TemporaryDirectory(prefix="perfdoc-nsys-") as folder:
        spy = Path(folder) / "python3"
        spy.write_text('#!/bin/sh\nprintf "perfdoc:%s\\n" "$PYTHONPATH"\n')
        spy.chmod(0o755)
        path = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
        try:
            done = _ran([str(nsys), "recipe", "nvtx_sum"], _ASK_TIMEOUT_S, {**os.environ, "PATH": path})
        except (OSError, subprocess.TimeoutExpired):
            return None
    listed = [line for line in done.stdout.splitlines() if line.startswith("perfdoc:")]
    for entry in listed[0].removeprefix("perfdoc:").split(os.pathsep) if listed else ():
        if entry and (Path(entry) / "nsys_recipe").is_dir():
            return Path(entry) / "nsys_recipe"
    return None
