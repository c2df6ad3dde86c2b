"""`perfdoc redact`: its options, and what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, in_one_line, say


def redact(
    paths: Annotated[
        list[str],
        typer.Argument(help="Captures: Nsight Systems .sqlite exports or PyTorch traces, files or folders."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The copy's name; of several captures a folder.")
    ],
    keep: Annotated[
        str | None, typer.Option(help="Names of ranges to keep as they are (regular expression).")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare each copy's ledger with the original's.")
    ] = True,
    force: Annotated[bool, typer.Option(help="Overwrite a copy that is there.")] = False,
    debug: Debug = False,
) -> None:
    """Write a copy of a capture that may be shared: without environment, hosts, paths and your own names."""
    from perfdoc.redact.copying import redact as write_copies
    from perfdoc.results.figures import plural
    from perfdoc.traces.load import find_captures

    with in_one_line(debug, output=output):
        try:
            pattern = re.compile(keep) if keep is not None else None
        except re.error as error:
            raise ValueError(f"--keep {keep!r}: is not a regular expression: {error}.") from error
        copies = write_copies(find_captures(paths), output, keep=pattern, force=force, verify=verify)
    for copy in copies:
        same = "" if copy.ranks is None else f"; {plural(copy.ranks, 'ledger')} as in the original"
        same = "; no GPU activity, so no ledger to compare" if copy.ranks == 0 else same
        left = f"; left out: {copy.copied.left_out}" if copy.copied.left_out else ""
        say(f"wrote {copy.path}: {plural(copy.copied.rows, 'row')}{left}{same}")
    say(
        f"{plural(copies[-1].copied.words, 'word')} replaced. Names of kernels and CUDA calls, GPUs, process "
        "ids and times are in the copy: look before you share it."
    )
