"""`perfdoc peak`: its options. The work is in peak/, whose imports wait until it is needed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perfdoc.cli.messages import Debug, in_one_line, say


def peak(
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1, max=256, help="Measure so many at once: GPUs (all if not given), or ranks on the CPU (1)."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Forget what is stored and measure anew.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    debug: Debug = False,
) -> None:
    """Measure what this machine reaches: GEMMs by dtype, memory and collective bandwidth."""
    from perfdoc.peak.measure import PeakError
    from perfdoc.peak.setting import setting_here
    from perfdoc.peak.store import ceilings, stored_path
    from perfdoc.peak.words import table

    with in_one_line(debug, PeakError):
        setting = setting_here(ranks)
        path = stored_path(setting)
        found, now = ceilings(setting, again=again)
    if json_:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        for line in found.busy:
            say(f"busy: {line}")
    else:
        sys.stdout.write(table(found, stored=path if path is not None and path.exists() else None, now=now))
    sys.stdout.flush()
