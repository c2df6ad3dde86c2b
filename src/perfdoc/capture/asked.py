"""What `perfdoc capture` is asked for: its options, but for what is done with the capture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The job, and what of it is captured how."""

    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND…",
            help="The job: torchrun … train.py …, or python train.py …, as you start it today.",
        ),
    ]
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; made, never overwritten.")
    ] = None
    steps: Annotated[
        str | None,
        typer.Option(
            help="FIRST:END as in Python (10:14 is 10 to 13), for a script with perfdoc.profiling.step."
        ),
    ] = None
    ranks: Annotated[str | None, typer.Option(help="Captured ranks, such as 0,8; all if not given.")] = None
    delay_s: Annotated[
        float | None, typer.Option("--delay", min=0, help="Seconds before the capture begins, without marks.")
    ] = None
    duration_s: Annotated[
        float | None, typer.Option("--duration", min=1, help="Seconds that are captured, without marks.")
    ] = None
    own_range: Annotated[
        bool, typer.Option("--own-range", help="The job calls cudaProfilerStart and cudaProfilerStop itself.")
    ] = False
    profiler: Annotated[
        Literal["auto", "nsys", "torch"],
        typer.Option(help="What captures; auto: nsys, and PyTorch's profiler where there is none."),
    ] = "auto"
    gpu_metrics: Annotated[
        bool, typer.Option("--gpu-metrics", help="Counters of the GPUs too; needs the right to read them.")
    ] = False
    scheduler: Annotated[
        bool, typer.Option("--scheduler/--no-scheduler", help="The threads' states too, where allowed.")
    ] = True
