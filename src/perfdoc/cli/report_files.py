"""Where an analysis writes: what is refused before any work is done."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import UserError
from perfdoc.profiling.whole_file import is_stream, may_write

BUNDLE = ("report.html", "report.md", "diagnosis.json")
"""What is written into the folder of -o."""


def check_targets(output: Path | None, json_file: str | None, *, force: bool) -> None:
    """Refuse what writing would fail at after all the work. Raises UserError and OSError."""
    taken = "is there already. Choose another {}, or overwrite with --force."
    if output is not None:
        filled = output.exists() and (not output.is_dir() or any(output.iterdir()))
        if filled and not force:
            raise UserError(f"{output}: {taken.format('-o')}")
        if output.is_dir():
            for name in BUNDLE:
                may_write(output / name)
    if json_file not in (None, "-"):
        path = Path(str(json_file))
        if path.exists() and not force and not is_stream(path):
            raise UserError(f"{json_file}: {taken.format('--json')}")
        if output is None or path.absolute().parent != output.absolute():  # which will be made
            may_write(path)


def spare_inputs(output: Path | None, json_file: str | None, request: AnalysisRequest) -> None:
    """Refuse to replace what is to be read, by any name of it. Raises UserError and OSError."""
    inputs = [*request.captures, *(path for files in request.memory for path in files.snapshots)]
    inputs = [path for path in inputs if path.exists()]  # a link to nothing is left out later
    targets = [output / name for name in BUNDLE] if output is not None else []
    targets += [Path(json_file)] if json_file not in (None, "-") and json_file else []
    for target in targets:
        if target.exists() and any(target.samefile(path) for path in inputs):
            raise UserError(f"{target}: is an input of the analysis. Choose another -o or --json.")


def free_folder(folder: Path) -> Path:
    """The folder, or the next free name, so that a second analysis needs no option."""
    candidate, n = folder, 1
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate
