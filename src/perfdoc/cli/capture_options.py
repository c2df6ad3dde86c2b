"""How a capture is read: the options that every command that measures captures has, with one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        help="Only this stretch: START,END on the capture's clock (ns, or with a unit: 4.2s,4300ms); "
        "range:REGEX, from the first to the last matching range of each rank; or capture, all of it.",
    ),
]
StepRange = Annotated[
    str | None,
    typer.Option(
        "--step-range",
        help="Names of the ranges that are training steps (regular expression); with --window those that "
        "begin inside.",
    ),
]
DataRange = Annotated[
    str | None,
    typer.Option(
        "--data-range", help="Names of the ranges in which training waits for data (regular expression)."
    ),
]
ModelConfig = Annotated[
    Path | None,
    typer.Option(
        "--model-config",
        help="The model's shape: a Hugging Face config.json, or a log or file of Megatron-LM's arguments.",
    ),
]
RangeTable = Annotated[
    list[str] | None,
    typer.Option(
        "--range-table",
        help="Names of ranges to list with their GPU time, exposed communication and idle time (regular "
        "expression; may be given again). Of a pattern with groups their text is the row's name.",
    ),
]
CommKernel = Annotated[
    str | None,
    typer.Option(
        "--comm-kernel",
        help="Names of kernels that are communication, beside those known (regular expression).",
    ),
]
