"""`perfdoc demo`: captures to try perfdoc on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, fail


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for traces/, answer.json and job.yaml.")
    ] = Path("demo"),
    force: Annotated[bool, typer.Option(help="Overwrite files that are there.")] = False,
    debug: Debug = False,
) -> None:
    """Write the captures of a small simulated job whose answer is known, to try perfdoc on."""
    import sqlite3

    from perfdoc.cli.simulation import said_of
    from perfdoc.profiling.errors import CaptureError
    from perfdoc.profiling.whole_file import made
    from perfdoc.simulator.forward.writing import write_demo

    try:
        with made(output):
            job = write_demo(output, force=force)
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
    sys.stdout.write("\n".join([*said_of(job, output), ""]))
