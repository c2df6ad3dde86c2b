"""`perfdoc export`: its options. The work is in export/captures.py, whose imports wait until it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.capture_options import Force, JobOptions, Jobs, with_options
from perfdoc.cli.messages import Debug, in_one_line, say
from perfdoc.cli.progress import bar


@with_options
def export(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE…", help="Captures as for `perfdoc analyze`: files, folders or glob patterns."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The file, compressed where its name ends in .gz; default: named after the capture.",
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            help="In place of the timeline: write the tables of a report's folder or diagnosis.json "
            "into this folder, as Parquet and CSV.",
        ),
    ] = None,
    *,
    options: JobOptions,
    jobs: Jobs = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Write the whole timeline with the ledger, dimensions and idle causes as tracks, for a trace viewer."""
    from perfdoc.export.captures import run

    hint = " The tables of a report: --tables DIR." if output is None and _is_report(paths) else ""
    with in_one_line(debug, hint=hint):
        if output is not None and tables is not None:
            raise ValueError(
                "give -o FILE for the timeline of captures, or --tables DIR for the tables of a diagnosis."
            )
        if tables is not None:
            from perfdoc.export import tables as files

            files.run(paths, tables, say, force=force)
            return
        request = options.request(paths, replay=False, jobs=jobs)
        with bar("reading"):
            run(request, output or _named_after(paths), say, force=force)


def _named_after(paths: list[str]) -> Path:
    """In this folder: `traces/rank0.sqlite` → `rank0.pftrace.gz`; of several `timeline.pftrace.gz`."""
    from perfdoc.diagnose.asked import split_settings

    named, _ = split_settings(paths)
    one = Path(named[0]) if len(named) == 1 else None
    stem = one.name.partition(".")[0] if one is not None and one.is_file() else ""
    return Path(f"{stem or 'timeline'}.pftrace.gz")


def _is_report(paths: list[str]) -> bool:
    """Whether it is the folder of a report, or its diagnosis.json, of which no timeline is made."""
    one = Path(paths[0])
    return (one / "diagnosis.json").is_file() or one.name == "diagnosis.json"
