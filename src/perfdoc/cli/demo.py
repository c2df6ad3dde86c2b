"""`perfdoc demo`: a capture to try perfdoc on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, fail, say


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for demo.sqlite and answer.json.")
    ] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
    debug: Debug = False,
) -> None:
    """Write a small synthetic capture whose answer is known, to try perfdoc on."""
    import sqlite3

    from perfdoc.profiling.errors import CaptureError
    from perfdoc.profiling.whole_file import made
    from perfdoc.simulator.demo import write_demo

    try:
        with made(output):
            trace, answer = write_demo(output, force=force)
    except CaptureError:
        if debug:
            raise
        fail(f"{output}: holds a demonstration already. Choose another -o, or overwrite with --force.")
    except sqlite3.Error as error:  # a full disk, above all
        if debug:
            raise
        fail(f"{output}: cannot be written: {error}.")
    except OSError as error:
        if debug:
            raise
        fail(f"{output}: cannot be written: {error.strerror or error}.")
    say(f"wrote {trace} and its known answer {answer}")
