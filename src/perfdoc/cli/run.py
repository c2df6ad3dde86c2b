"""`perfdoc run` and `perfdoc config`. The work is in run/, whose imports wait until it is needed."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.analyze import analyze
from perfdoc.cli.capture_options import CaptureOptions
from perfdoc.cli.messages import Debug, in_one_line, say
from perfdoc.cli.progress import bar
from perfdoc.cli.tables import table


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY=VALUE]… [-- TORCHRUN…]",
            help="A configuration (tiny if not given, gpt_125m, llama3_8b, mixtral_8x7b, or a .yaml file), "
            "overrides (see: perfdoc config show), torchrun's arguments.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Run directory; made, never overwritten.")
    ] = None,
    profiler: Annotated[
        str | None, typer.Option(help="auto, nsys, torch or none.", show_default="auto")
    ] = None,
    profile_start: Annotated[
        int | None, typer.Option(min=1, help="First profiled step.", show_default="10")
    ] = None,
    profile_steps: Annotated[
        int | None, typer.Option(min=1, help="Number of profiled steps.", show_default="3")
    ] = None,
    profile_ranks: Annotated[
        str | None, typer.Option(help="Profiled ranks, such as 0 or 0,8; all if not given.")
    ] = None,
    peak: Annotated[
        bool,
        typer.Option(
            "--peak/--no-peak", help="Measure what this machine reaches, once, so that MFU is known."
        ),
    ] = True,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="SERVICE,…",
            help="Where figures are shown: tensorboard (if none is given), wandb, mlflow, prometheus=PATH.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the command and stop.")] = False,
    debug: Debug = False,
) -> None:
    """Train the reference model with profiling on, and analyse what it left."""
    with bar("checking the run"):
        from perfdoc.profiling.errors import UserError
        from perfdoc.profiling.own.sinks import VARIABLE, chosen
        from perfdoc.run.execution import execute, leave_ceilings, shared_cores, show_report
        from perfdoc.run.prepare import prepare, split_words

        with in_one_line(debug, ValueError):
            if log is not None:
                os.environ[VARIABLE] = log
            chosen(None)
            config, overrides, torchrun = split_words(words or [])
            planned = prepare(
                config=config,
                overrides=overrides,
                output=output,
                profiler=profiler,
                profile_start=profile_start,
                profile_steps=profile_steps,
                profile_ranks=profile_ranks,
                torchrun=torchrun,
                dry_run=dry_run,
                peak=peak,
            )
    with in_one_line(debug, UserError):
        say(planned.choice.reason)
        for note in (shared_cores(planned), planned.config.shortened):
            if note:
                say(note)
        if dry_run:
            sys.stdout.write(shlex.join(planned.command) + "\n")
            return
        if peak:
            leave_ceilings(planned, say)
        say(shlex.join(planned.command))
        if sys.stderr.isatty():  # until the first step, whose line takes its place
            sys.stderr.write("the ranks load PyTorch and megatron-core\r")
        ended = execute(planned, say)
    if ended.code:
        raise typer.Exit(ended.code)
    assert planned.run is not None
    if ended.analyse:
        folder = planned.run.path
        analyze([str(folder)], output=folder / "report", options=CaptureOptions(), debug=debug)
        show_report(planned.run)


config_app = typer.Typer(
    help="The trainer's configurations.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@config_app.command("list", short_help="Print the configurations that ship, and what each is.")
def config_list() -> None:
    """Print each configuration's name and what it is."""
    from perfdoc.trainer.config.resolve import described_configs

    sys.stdout.write(table([*described_configs().items()]))


@config_app.command("show", short_help="Print every setting with its value and origin.")
def config_show(
    config: Annotated[str, typer.Argument(help="A configuration's name or .yaml file.")] = "tiny",
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value")] = None,
) -> None:
    """Print every setting of a configuration with its value and where the value comes from."""
    from perfdoc.run.prepare import config_rows

    with in_one_line(debug=False):
        rows = config_rows(config, overrides or [])
    sys.stdout.write(table(rows, styles={"default": "dim", "override": "bold"}))
