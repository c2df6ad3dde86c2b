"""`perfdoc simulate` and `demo`. The work is in simulation, whose imports wait until it is needed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoc.cli.capture_options import Force, ModelConfig, with_options
from perfdoc.cli.messages import Debug, in_one_line
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The job, what is wrong with it, and what is written of it."""

    model: Annotated[
        str | None, typer.Argument(help="A published model's name, such as llama3-70b or mixtral-8x7b.")
    ] = None
    model_config: ModelConfig = None
    layout: Annotated[
        str, typer.Option(help="Parallel layout and overlaps: tp=8,pp=4,vpp=2,dp=4,micro_batches=16,sp=on,…")
    ] = "dp=2"
    fault: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=VALUE; give it several times. See --list-faults.")
    ] = None
    gpu: Annotated[str, typer.Option(help="a100, h100, h200 or b200.")] = "h100"
    steps: Annotated[int, typer.Option(help="Training steps.")] = 2
    ranks: Annotated[
        str, typer.Option(help="Ranks to write: all, stages (one of each), groups, or such as 0,8-15.")
    ] = "all"
    clock_error: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Clock error of the files, up to this many µs.")
    ] = 0
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for traces/, answer.json and job.yaml.")
    ] = Path("simulated")


@with_options
def simulate(
    *,
    wanted: Wanted,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="List the faults and stop.")] = False,
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Simulate a training step on every rank, with faults, and write captures with a known answer."""
    from perfdoc.cli.simulation import fault_table, run

    if list_faults:
        sys.stdout.write(fault_table())
        return
    with in_one_line(debug, output=wanted.output):
        run(wanted, force=force)


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for traces/, answer.json and job.yaml.")
    ] = Path("demo"),
    force: Force = False,
    debug: Debug = False,
) -> None:
    """Write the captures of a small simulated job whose answer is known, to try perfdoc on."""
    from perfdoc.cli.simulation import say_job
    from perfdoc.simulator.forward.writing import write_demo

    hint = " Or overwrite it: --force."
    with in_one_line(debug, output=output, hint=hint):
        job = write_demo(output, force=force)
    say_job(job, output)
