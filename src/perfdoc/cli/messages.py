"""What every command shares: how it speaks, how it ends, and the options that several have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

EXIT_FOUND = 1
"""What was looked for is there: a rule of --fail-on, an error of a configuration, a step that is slower."""
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_STOPPED = 130


class DataFormat(StrEnum):
    """What goes to standard output of a command that writes no report."""

    TEXT = "text"
    JSON = "json"


class ReportFormat(StrEnum):
    """What goes to standard output of a command that writes a report."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    JUNIT = "junit"
    GITHUB = "github"


Format = Annotated[DataFormat, typer.Option("--format", help="What to print.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def say(message: str) -> None:
    """One line on stderr, whatever a path or a name in it holds."""
    from perfdoc.results.names import PROSE_LIMIT, shorten

    typer.echo(f"perfdoc: {shorten(message, PROSE_LIMIT)}", err=True)


def fail(message: str, code: int = EXIT_BAD_INPUT) -> NoReturn:
    """One line on stderr, and the exit code of a user's mistake unless another is given."""
    say(message)
    raise typer.Exit(code)


@contextmanager
def in_one_line(debug: bool, *mistakes: type[Exception]) -> Iterator[None]:
    """What a command says of these mistakes; without any named, of bad input, of a worker that was lost and
    of a disk that takes nothing."""
    try:
        yield
    except Exception as error:
        from perfdoc.diagnose.workers import WorkerLostError

        if debug or not isinstance(error, mistakes or (ValueError, WorkerLostError, OSError)):
            raise
        if not mistakes and isinstance(error, OSError):
            fail(f"{error.filename}: cannot be written: {error.strerror}.")
        fail(str(error))


def require_free(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """That results can go into a folder, before any work is done. Raises ValueError."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is no folder. Choose another -o.")
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        held = " and ".join(there)
        raise ValueError(f"{folder}: holds {held} already. Choose another -o, or overwrite with --force.")
