"""Nsight's recipes, the scripts of `nsys recipe` over many reports: where they are, and running one.

`nsys recipe` starts the first `python3` on PATH with the package `nsys_recipe` of its installation, and that
Python must have the package's requirements (numpy, pandas, psutil, pyarrow). docs/nsight.md says more.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import tempfile
from pathlib import Path

from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys_stats import MAX_BYTES, TIMEOUT_S, NsysTable, last_words

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
            done = subprocess.run(
                line,
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
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
            done = subprocess.run(
                [str(nsys), "recipe", "nvtx_sum"],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PATH": path},
                timeout=_ASK_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
    told = [line for line in done.stdout.splitlines() if line.startswith("perfdoc:")]
    for entry in told[0].removeprefix("perfdoc:").split(os.pathsep) if told else ():
        if entry and (Path(entry) / "nsys_recipe").is_dir():
            return Path(entry) / "nsys_recipe"
    return None
