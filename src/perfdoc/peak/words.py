"""The table that `perfdoc peak` prints: what was reached, beside the data sheet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfdoc.profiling.gpus import gpu_model
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.results.figures import bandwidth, flops, plural, share
from perfdoc.results.names import shorten

_HEAD = ("", "reached", "data sheet", "of it", "spread", "best of")


def table(found: MeasuredCeilings, *, stored: Path | None, now: bool) -> str:
    """Everything measured, a line each; then what is missing and what disturbed it."""
    rows = [_HEAD, *_rows(found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = [_title(found), ""]
    for row in rows:
        cells = [
            cell.ljust(w) if i in (0, 5) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", *(f"not measured: {what}: {shorten(why, 160)}" for what, why in found.missing.items())]
    lines += [f"busy: {shorten(line, 160)}" for line in found.busy]
    if found.busy:
        lines.append("The figures are what was reached beside other work; try again on a quiet machine.")
    when = "measured now" if now else f"measured {found.measured_utc}; again with --again"
    lines.append(f"{when}; {'kept nowhere' if stored is None else f'kept in {stored}'}")
    return "\n".join(lines) + "\n"


def _title(found: MeasuredCeilings) -> str:
    parts = [shorten(found.device, 80)]
    if found.ranks > 1:
        parts.append(f"{found.ranks:,} ranks at once, figures of one")
    if found.threads is not None:
        parts.append(plural(found.threads, "thread") + (" each" if found.ranks > 1 else ""))
    return ", ".join([*parts, *(f"{name} {version}" for name, version in found.versions.items())])


def _rows(found: MeasuredCeilings) -> Iterator[tuple[str, ...]]:
    model = gpu_model(found.device)
    for dtype, rate in found.flops.items():
        yield _row(dtype, rate, None if model is None else model.flops(dtype), is_flops=True)
    memory = None if model is None or model.memory_gbps is None else model.memory_gbps * 1e9
    for name, rate in found.memory.items():
        yield _row(name, rate, memory)
    for name, rate in found.collectives.items():
        yield _row(f"{name.replace('_', '-')} (bus)", rate, None)


def _row(name: str, rate: Rate, sheet: float | None, *, is_flops: bool = False) -> tuple[str, ...]:
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
