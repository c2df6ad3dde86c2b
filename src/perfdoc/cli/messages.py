"""What every command shares: how it speaks, how it ends, and the options that several have."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from perfdoc.cli.headings import RARE

EXIT_FOUND = 1
"""What was looked for is there: a rule of --fail-on, an error of a configuration, a step that is slower."""
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_STOPPED = 130


Format = Annotated[Literal["text", "json"], typer.Option("--format", help="What to print.")]
Full = Annotated[bool, typer.Option("--full", help="Print all of it, not only its first screen.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=RARE)]


def say(message: str) -> None:
    """One line on stderr, whatever a path or a name in it holds."""
    from perfdoc.results.names import PROSE_LIMIT, shorten

    sys.stderr.write(f"perfdoc: {shorten(message, PROSE_LIMIT)}\n")  # a bar is drawn anew below it


def fail(message: str, code: int = EXIT_BAD_INPUT) -> NoReturn:
    """One line on stderr, and the exit code of a user's mistake unless another is given."""
    say(message)
    raise typer.Exit(code)


@contextmanager
def in_one_line(
    debug: bool, *mistakes: type[Exception], output: Path | None = None, hint: str = ""
) -> Iterator[None]:
    """What a command says of these mistakes; without any named, of bad input, of a worker that was lost and
    of a disk that takes nothing. The error's class may give the exit code.

    output: what is being written, where the error does not say. hint: for behind what bad input is told.
    """
    try:
        yield
    except Exception as error:
        # A full disk, above all. PyTorch traces are read without SQLite.
        database = sys.modules.get("sqlite3")
        unwritten = (OSError, *([database.Error] if database else []))
        if debug or not isinstance(error, mistakes or (ValueError, *unwritten)):
            raise
        from perfdoc.run.stop import stop_behind

        if stop := stop_behind(error):
            raise stop from None
        if not mistakes and isinstance(error, unwritten):
            fail(unwritten_words(error, output))
        fail(f"{error}{hint}", getattr(error, "exit_code", EXIT_BAD_INPUT))


def unwritten_words(error: Exception, output: Path | None = None) -> str:
    """What cannot be written, as the user named it, why, and what to do about it."""
    file, why = getattr(error, "filename", None), getattr(error, "strerror", None)
    named = output if output is not None and (file is None or "/.part-" in str(file)) else file
    elsewhere = " Choose another place." if isinstance(error, PermissionError) else ""
    return f"{named or output}: cannot be written: {why or error}.{elsewhere}"


def require_free(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """That results can go into a folder, before any work is done. Raises ValueError."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is no folder. Choose another -o.")
    beside = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(beside, os.W_OK):
        raise ValueError(f"{folder}: cannot be written: {os.strerror(errno.EACCES)}. Choose another -o.")
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        held = " and ".join(there)
        raise ValueError(f"{folder}: holds {held} already. Choose another -o, or overwrite with --force.")
