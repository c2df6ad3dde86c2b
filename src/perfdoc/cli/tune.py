"""`perfdoc tune`: its options. The work is in tune/, whose imports wait until it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoc.cli.capture_options import Force, JobOptions, Jobs, with_options
from perfdoc.cli.messages import EXIT_STOPPED, Debug, Format, Full, in_one_line, require_free, say
from perfdoc.cli.progress import bar
from perfdoc.cli.streams import columns, write_json
from perfdoc.profiling.malloc import without_threads

if TYPE_CHECKING:
    from perfdoc.tune.result import Tuning

_SEARCH, _RUN = "What is searched", "Run what was found"
"""Headings of --help."""
_FILES = ("tune.html", "tune.json")
"""What is written into the folder of -o."""
DEFAULT_OUTPUT = "perfdoc-tune"
"""Where runs are kept where no folder is named."""


@with_options
def tune(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...",
            help="Captures of some or all ranks of a job, or a run directory of perfdoc run.",
        ),
    ],
    fix: Annotated[
        list[str] | None,
        typer.Option(help="Keep a setting at a value: --fix tp=8; may be repeated.", rich_help_panel=_SEARCH),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Search only these settings: --only vpp,mbs.", rich_help_panel=_SEARCH),
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            metavar="GIB", help="Memory of a GPU, where the captures do not say it.", rich_help_panel=_SEARCH
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=200, help="Configurations to list.")] = 10,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for tune.html and tune.json.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write tune.json here as well; - for standard output.")
    ] = None,
    format_: Format = "text",
    full: Full = False,
    verify: Annotated[
        int | None,
        typer.Option(
            min=1, max=50, help="Run the best so many and the unchanged one in turn.", rich_help_panel=_RUN
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="With --verify: what to run, with {settings}; default: perfdoc run, of a RUN.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="With --command: a step's time in its output. The first group is in ms, in s if called s.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(min=1, max=50, help="With --verify: runs of each configuration.", rich_help_panel=_RUN),
    ] = 3,
    steps: Annotated[
        int, typer.Option(help="With --verify of perfdoc run: steps of each run.", rich_help_panel=_RUN)
    ] = 40,
    *,
    options: JobOptions,
    jobs: Jobs = None,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Search the configuration to run instead, and rank what it would take.

    Exit code 3: nothing can be predicted from these captures; 130: stopped while it measured, the same
    command goes on.
    """
    without_threads()
    from perfdoc.profiling.errors import UserError
    from perfdoc.tune.run import fixed_of, only_of

    complete, measuring = True, None
    with in_one_line(debug):
        if verify is None and (command or pattern):
            raise UserError("--command and --pattern go with --verify N.")
        if gpu_memory is not None and not 0 < gpu_memory < 1e6:
            raise UserError(f"--gpu-memory {gpu_memory}: is no number of GiB.")
        if verify is not None:
            output = output or Path(DEFAULT_OUTPUT)
        _require_free(output, json_file, force=force, measured=verify is not None)
        if verify is not None and output is not None:
            from perfdoc.tune.verification import asked

            measuring = asked(paths, output, verify, command, pattern, rounds, steps, force)
        from perfdoc.tune.run import tune as search

        with bar("reading"):
            _, found = search(
                options.request(paths, replay=False, jobs=jobs),
                only=only_of(only or []),
                fixed=fixed_of(fix or []),
                gpu_memory_bytes=None if gpu_memory is None else round(gpu_memory * 2**30),
                top=top,
                say=say,
            )
        _write(found, output, json_file)
        if measuring is not None:
            found, complete = measuring.measured(found, say)
            _write(found, output, json_file)
    _print(found, paths, as_json=json_file == "-" or format_ == "json", full=full)
    if output is not None:
        say(f"wrote {output / _FILES[0]}")
    if not complete:
        say("stopped: the same command goes on")
        raise typer.Exit(EXIT_STOPPED)


def _require_free(folder: Path | None, json_file: str | None, *, force: bool, measured: bool) -> None:
    """Before any work is done. measured: of runs; what is there is gone on with. Raises ValueError."""
    if folder is not None:
        from perfdoc.tune.verification import STATE

        require_free(folder, _FILES, force=force or (measured and (folder / STATE).exists()))
    if json_file not in (None, "-") and Path(str(json_file)).exists() and not (force or measured):
        raise ValueError(f"{json_file}: is there already. Choose another --json, or overwrite with --force.")


def _write(found: Tuning, folder: Path | None, json_file: str | None) -> None:
    from perfdoc.profiling.whole_file import may_write, write_all
    from perfdoc.results.type_schema import json_bytes

    contents: dict[Path, bytes] = {}
    if folder is not None:
        from perfdoc.tune.words import render_html

        contents = {folder / _FILES[0]: render_html(found).encode(), folder / _FILES[1]: json_bytes(found)}
    if json_file not in (None, "-"):
        path = Path(str(json_file))
        if folder is None or path.absolute().parent != folder.absolute():
            may_write(path)
        contents[path] = json_bytes(found)
    if contents:
        write_all(contents, folder)


def _print(found: Tuning, paths: list[str], *, as_json: bool, full: bool) -> None:
    from perfdoc.results.type_schema import json_bytes
    from perfdoc.tune.words import first_screen, render_text

    if as_json:
        write_json(json_bytes(found))
    else:
        width = columns()
        text = render_text(found, width=width) if full else first_screen(found, paths, width=width)
        sys.stdout.write(text)
    sys.stdout.flush()
