"""The options of `perfdoc analyze` that name a baseline and targets; light, since every start imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BaselineOption = Annotated[
    Path | None,
    typer.Option(help="Show the change since a diagnosis.json, a report's folder or the gate's baselines."),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(help="Aim at mfu=0.45, step_time_ms=900, tokens_per_s_per_gpu=4000, peak_memory_gib=70."),
]
