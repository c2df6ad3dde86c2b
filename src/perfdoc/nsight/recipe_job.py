"""What perfdoc's recipe does per report (`perfdoc summarize`) and at the end (`perfdoc analyze`).

Each is a process of perfdoc's own Python. This file and recipe.py are copied into an installation of Nsight
Systems and run by the Python that `nsys recipe` finds. That one may be old and need not have perfdoc, so only
the standard library is used here, of Python 3.8 and later. docs/own_trainer.md says how perfdoc's Python is
found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

METADATA = {
    "module_name": "nsight.recipe",
    "class_name": "Perfdoc",
    "display_name": "perfdoc: where the time of a training step goes",
    "description": (
        "This recipe accounts for every nanosecond of the training steps in one or more reports, one per "
        "rank, and writes one diagnosis of all of them: report.html, report.md and diagnosis.json."
    ),
}
"""What becomes metadata.json, by which `nsys recipe` finds the recipe."""
INSTALLATION = "perfdoc_installation.json"
"""Beside the folder of this file's copy: which Python has perfdoc."""
PYTHON, NSYS = "PERFDOC_PYTHON", "PERFDOC_NSYS"
"""Environment: the Python to use instead, and the nsys that exports reports."""
_AGAIN = f"Install the recipe again (perfdoc nsys install-recipe --force), or set {PYTHON}."


class JobError(Exception):
    """A step that failed: one line."""


def installation() -> dict[str, Any]:
    """`python` and `pythonpath` (None where that Python finds perfdoc by itself).

    Where no file tells, this is not a copy: perfdoc belongs to the Python that runs.
    """
    file = Path(__file__).resolve().parents[1] / INSTALLATION
    if not file.is_file():
        return {"python": sys.executable, "pythonpath": None}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def measure(report: str, job: dict[str, Any]) -> dict[str, Any]:
    """Summarize one report: {"report", "name" and "measured": the summary for `reduce`, "error": one line}.

    job: "installation" as above, "nsys" (path or None), "options" for the steps, "reports": how many there
    are. Runs in Nsight's workers.
    """
    with tempfile.TemporaryDirectory(prefix="perfdoc-") as scratch:
        words = ["summarize", "--ranks", str(job["reports"]), "--output", scratch, *job["options"]]
        try:
            _step([*words, "--", report], job)
        except JobError as error:
            return {"report": report, "name": "", "measured": b"", "error": str(error)}
        (summary,) = Path(scratch).iterdir()
        return {"report": report, "name": summary.name, "measured": summary.read_bytes(), "error": ""}


def reduce(results: list[dict[str, Any]], folder: str, job: dict[str, Any]) -> None:
    """Write one diagnosis of everything that was measured into a folder. Raises JobError."""
    with tempfile.TemporaryDirectory(prefix="perfdoc-") as scratch:
        names: list[str] = []
        for number, result in enumerate(results):
            # Reports of several folders may have one name.
            names.append(f"{number}-{result['name']}" if result["name"] in names else result["name"])
            (Path(scratch) / names[-1]).write_bytes(result["measured"])
        words = ["analyze", "--output", os.path.abspath(folder), "--force", *job["options"]]  # noqa: PTH100
        _step([*words, "--", *names], job, folder=scratch)


def _step(arguments: list[str], job: dict[str, Any], folder: str | None = None) -> None:
    """Run a command of perfdoc, in a folder. Raises JobError with its last line."""
    found = job["installation"]
    python = os.environ.get(PYTHON) or found["python"]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if found["pythonpath"] and not os.environ.get(PYTHON):
        environment["PYTHONPATH"] = found["pythonpath"]
    if job["nsys"]:
        environment.setdefault(NSYS, job["nsys"])
    try:
        done = subprocess.run(  # -P: nothing in the current folder stands for a module.
            [python, "-P", "-m", "perfdoc", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd=folder,
            check=False,
        )
    except OSError as error:
        why = f"perfdoc's Python, {python}, cannot be started: {error.strerror}."
        raise JobError(f"{why} {_AGAIN}") from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = lines[-1] if lines else f"it ended with code {done.returncode}"
        raise JobError(f"{said}. {_AGAIN}" if "No module named" in said else said)
