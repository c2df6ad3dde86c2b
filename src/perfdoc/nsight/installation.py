"""Where an installed Nsight Systems keeps its recipes, and what its programs say went wrong."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from perfdoc.profiling.errors import CaptureError

_PACKAGE = Path("python", "packages", "nsys_recipe")
_ASK_TIMEOUT_S = 60.0
_LEVELS_UP = 4
"""From the program (`bin/nsys`, `target-linux-x64/nsys`) to the folder of the installation, generously."""


def last_words(stdout: str, stderr: str) -> str:
    """What nsys says went wrong or was left out: one line, empty where it says nothing."""
    for mark in ("SKIPPED:", "ERROR:"):
        for line in f"{stderr}\n{stdout}".splitlines():
            if mark in line:
                return line.partition(mark)[2].strip().rstrip(".")[:300]
    return ""


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
    listed = [line for line in done.stdout.splitlines() if line.startswith("perfdoc:")]
    for entry in listed[0].removeprefix("perfdoc:").split(os.pathsep) if listed else ():
        if entry and (Path(entry) / "nsys_recipe").is_dir():
            return Path(entry) / "nsys_recipe"
    return None
