"""Reports that nsys has not exported yet: exported through the installed `nsys` into a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from perfdoc.profiling.nsys import OVERRIDE
from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import Trace
from perfdoc.traces.nsys import read_nsys_sqlite

EXPORT_TIMEOUT_S = 3600


def read_nsys_rep(path: Path) -> Trace:
    """Export a `.nsys-rep` to SQLite and read that; the report and its folder are left as they are.

    The nsys is the one that PERFDOC_NSYS names, else the one on PATH.

    Raises TraceError where there is no `nsys`, or where it cannot read the report (a report needs the
    same or a newer nsys than wrote it).
    """
    command = os.environ.get(OVERRIDE) or shutil.which("nsys")
    export = f"nsys export --type sqlite --lazy=false -o {path.stem}.sqlite {path.name}"
    if command is None:
        raise TraceError(
            path,
            "is a Nsight Systems report, and no `nsys` is installed here to export it.",
            f"Where nsys is, run: {export} — then analyse the .sqlite file.",
        )
    with tempfile.TemporaryDirectory(prefix="perfdoc-") as folder:
        target = Path(folder) / "export.sqlite"
        try:
            done = subprocess.run(
                [command, "export", "--type", "sqlite", "--lazy=false", "--force-overwrite", "true",
                 "--output", str(target), str(path.resolve())],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=EXPORT_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TraceError(
                path, f"`nsys export` could not be run: {error}.", f"Try by hand: {export}"
            ) from error
        if done.returncode != 0 or not target.exists():
            lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
            said = next((line for line in lines if "rror" in line), lines[-1] if lines else "no message")
            raise TraceError(
                path,
                f"`nsys export` failed: {said[:200]}",
                "A report needs the same or a newer nsys than the one that wrote it.",
            )
        try:
            trace = read_nsys_sqlite(target)
        except TraceError as error:
            raise type(error)(path, error.what, error.remedy) from error
    return replace(trace, path=path, format="nsys-rep")
