"""`perfdoc peak`: its options. The work is in peak/, whose imports wait until it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoc.cli.messages import Debug, in_one_line, say
from perfdoc.cli.streams import json_text
from perfdoc.cli.tables import table

if TYPE_CHECKING:
    from perfdoc.profiling.measured import MeasuredCeilings, Rate


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
    from perfdoc.peak.store import ceilings, setting_here, stored_path
    from perfdoc.profiling.errors import UserError

    with in_one_line(debug, UserError):
        setting = setting_here(ranks)
        path = stored_path(setting)
        found, now = ceilings(setting, again=again)
    if json_:
        sys.stdout.write(json_text(found))
        for line in found.busy:
            say(f"busy: {line}")
    else:
        sys.stdout.write(
            format_table(found, stored=path if path is not None and path.exists() else None, now=now)
        )
    sys.stdout.flush()


_HEAD = ("", "reached", "data sheet", "of it", "spread", "best of")


def format_table(found: MeasuredCeilings, *, stored: Path | None, now: bool) -> str:
    """Everything measured, a line each; then what is missing and what disturbed it."""
    from perfdoc.results.names import shorten

    drawn = table([*_rows(found)], head=_HEAD, right=(1, 2, 3, 4))
    lines = [_title(found), "", *drawn.splitlines()]
    lines += ["", *(f"not measured: {what}: {shorten(why, 160)}" for what, why in found.missing.items())]
    lines += [f"busy: {shorten(line, 160)}" for line in found.busy]
    if found.busy:
        lines.append("The figures are what was reached beside other work; try again on a quiet machine.")
    when = "measured now" if now else f"measured {found.measured_utc}; again with --again"
    lines.append(f"{when}; {'kept nowhere' if stored is None else f'kept in {stored}'}")
    return "\n".join(lines) + "\n"


def _title(found: MeasuredCeilings) -> str:
    from perfdoc.results.figures import plural
    from perfdoc.results.names import shorten

    parts = [shorten(found.device, 80)]
    if found.ranks > 1:
        parts.append(f"{found.ranks:,} ranks at once, figures of one")
    if found.threads is not None:
        parts.append(plural(found.threads, "thread") + (" each" if found.ranks > 1 else ""))
    return ", ".join([*parts, *(f"{name} {version}" for name, version in found.versions.items())])


def _rows(found: MeasuredCeilings) -> Iterator[tuple[str, ...]]:
    from perfdoc.profiling.gpus import gpu_model

    model = gpu_model(found.device)
    for dtype, rate in found.flops.items():
        yield _row(dtype, rate, None if model is None else model.flops(dtype), is_flops=True)
    memory = None if model is None or model.memory_gbps is None else model.memory_gbps * 1e9
    for name, rate in found.memory.items():
        yield _row(name, rate, memory)
    for name, rate in found.collectives.items():
        yield _row(f"{name.replace('_', '-')} (bus)", rate, None)


def _row(name: str, rate: Rate, sheet: float | None, *, is_flops: bool = False) -> tuple[str, ...]:
    from perfdoc.results.figures import bandwidth, flops, share

    def said(value: float) -> str:
        return f"{flops(value)}FLOP/s" if is_flops else bandwidth(value / 1e9)

    return (
        name,
        said(rate.best),
        "-" if sheet is None else said(sheet),
        "-" if sheet is None else share(rate.best / sheet),
        share(rate.spread_frac),
        f"{rate.repeats}: {rate.what}",
    )
