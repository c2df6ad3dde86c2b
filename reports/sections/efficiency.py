"""Compute against the roofline: what ran at the peak, and what was lost by cause, class and operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, stopped, time, word
from perfdoc.results import Diagnosis, figures
from perfdoc.results.efficiency import ClassEfficiency, KernelEfficiency, OperatorEfficiency
from perfdoc.results.names import prose, shorten

CAUSE_WORDS = {
    "recomputation": "recomputation",
    "precision": "slower precision",
    "memory_bound": "memory-bound",
    "contention": "SM contention",
    "shape": "SMs without blocks",
    "clock": "lower SM clock",
    "below_roofline": "below roofline",
}
_MEANINGS = {
    "recomputation": "forward work that is done again",
    "precision": "FLOPs in a dtype that has a faster one",
    "memory_bound": "bytes at HBM's bandwidth: fusion removes them",
    "contention": "kernels beside communication",
    "shape": "small grids and last waves",
    "clock": "below the highest SM clock of the capture: power, heat",
    "below_roofline": "the rest of kernels whose work is known",
}
AT_PEAK, UNKNOWN = "FLOPs at peak", "work unknown"
_CLASSES, _OPERATORS = 12, 15
_DASH = Cell(text="—")


def build(diagnosis: Diagnosis) -> Section | None:
    """None where nothing is known of any kernel's work."""
    found = diagnosis.analyses.kernel_efficiency
    if found.state != "measured" or not found.known_ns:
        return None
    return Section(
        key="efficiency",
        title="Compute against the roofline",
        sentences=[*_said(found), *(stopped(prose(note, 200)) for note in found.notes)],
        grids=[_losses(found), _classes(found.by_class, found.compute_ns), _operators(found)],
    )


def _said(found: KernelEfficiency) -> Iterator[str]:
    peak = figures.share(found.at_peak_ns / found.compute_ns)
    known = figures.share(found.known_frac or 0.0)
    yield f"{peak} of compute is FLOPs at the peak; the work of kernels is known for {known} of it."
    if any(row.source == "model" for row in found.operators):
        yield "FLOPs of GEMMs and attention whose operators have no shapes follow from the model's shape."
    if found.ceilings:
        yield "Ceilings: " + "; ".join(prose(text, 100) for text in found.ceilings) + "."


def _losses(found: KernelEfficiency) -> Grid:
    rows = [(AT_PEAK, found.at_peak_ns, "the model's FLOPs and others that GEMMs and attention do")]
    rows += [(_cause(row.cause), row.total_ns, _MEANINGS.get(row.cause, "")) for row in found.losses]
    rows.append((UNKNOWN, found.unknown_ns, "no shapes, no formula, or no place in a layer"))
    whole = found.compute_ns
    return Grid(
        caption="Where compute goes; each nanosecond belongs to one kernel",
        head=["", "share", "time", ""],
        align="lrrl",
        rows=[
            *([word(what), share(ns / whole), time(ns), word(meaning)] for what, ns, meaning in rows if ns),
            [word("sum: compute"), share(1.0), time(whole), word("")],
        ],
    )


def _cause(cause: str) -> str:
    return CAUSE_WORDS.get(cause) or shorten(cause, 48)


def _classes(rows: Sequence[ClassEfficiency], compute_ns: int) -> Grid:
    known = [row for row in rows if row.known_ns]
    return Grid(
        caption="By kernel class",
        head=["class", "of compute", "time", "TFLOP/s", "TB/s", "of roofline", "most lost by"],
        align="lrrrrrl",
        rows=[
            [
                word(row.kernel_class.replace("_", " ")),
                share(row.time_ns / compute_ns),
                time(row.time_ns),
                _rate(row.achieved_tflops),
                _rate(row.achieved_tbps),
                share(row.roofline_frac),
                _most_lost(row),
            ]
            for row in known[:_CLASSES]
        ],
        left_out=len(known[_CLASSES:]),
    )


def _most_lost(row: ClassEfficiency) -> Cell:
    if not row.losses_ns:
        return _DASH
    cause, ns = max(row.losses_ns.items(), key=lambda item: item[1])
    return word(f"{_cause(cause)} {figures.duration(ns)}")


def _operators(found: KernelEfficiency) -> Grid:
    return Grid(
        caption="Operators by time lost",
        head=[
            *("operator", "shapes", "dtype", "calls", "time", "TFLOP/s", "TB/s"),
            *("of roofline", "bound", "lost"),
        ],
        align="nnlrrrrrlr",
        rows=[_operator(row) for row in found.operators[:_OPERATORS]],
        left_out=len(found.operators[_OPERATORS:]) + found.operators_left_out,
    )


def _operator(row: OperatorEfficiency) -> list[Cell]:
    return [
        name(row.name, 48),
        name(row.shapes, 72),
        word(row.dtype),
        count(row.calls),
        time(row.time_ns),
        _rate(row.achieved_tflops),
        _rate(row.achieved_tbps),
        share(row.roofline_frac),
        word(row.bound) if row.bound else _DASH,
        time(row.lost_ns),
    ]


def _rate(value: float | None) -> Cell:
    if value is None:
        return _DASH
    return word(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}")
