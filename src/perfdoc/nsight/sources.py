"""What is compared with Nsight: its reports, rules and recipes, and perfdoc's figure for each column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.nsight.figures import (
    Figures,
    Gaps,
    Key,
    Overlaps,
    RangeFigures,
    gap_figures,
    kernel_figures,
    named_range_figures,
    overlap_figures,
    projection_figures,
    range_figures,
)
from perfdoc.traces import Trace

Rows: TypeAlias = Sequence[Mapping[str, str]]
Table: TypeAlias = Mapping[Key, Figures]


class Ours:
    """perfdoc's figures of one whole capture, each table worked out when it is first asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def ranges(self) -> RangeFigures:
        """By label and style."""
        return range_figures(self._trace)

    @cached_property
    def named_ranges(self) -> Table:
        """By name alone."""
        return named_range_figures(self._trace)

    @cached_property
    def kernels(self) -> Table:
        """By full name."""
        return kernel_figures(self._trace)

    @cached_property
    def projections(self) -> Table:
        """By label and style."""
        return projection_figures(self._trace)

    @cached_property
    def overlaps(self) -> Overlaps:
        """By short kernel name."""
        return overlap_figures(self._trace)

    def push_pop(self) -> Table:
        """Push/pop ranges only, as `nvtx_pushpop_sum` has them: by label."""
        return {(name, ""): f for (name, style), f in self.ranges.by_key.items() if style == "PushPop"}

    @cached_property
    def gaps(self) -> Mapping[Key, Gaps]:
        """By device."""
        return {device_key(*device): gaps for device, gaps in gap_figures(self._trace).items()}

    def gap_table(self) -> Table:
        """Count and total of gaps by device."""
        return {
            device: {"count": len(gaps.start_ns), "total_ns": int((gaps.end_ns - gaps.start_ns).sum())}
            for device, gaps in self.gaps.items()
        }

    def overlap_table(self) -> Table:
        """Communication and other kernels together; the figure's name tells which."""
        both = {**self.overlaps.communication, **self.overlaps.compute}
        return {(name, ""): figures for name, figures in both.items()}

    def why(self, source: str, key: Key, figure: str, theirs: float, rows: Rows) -> str:
        """A cause of a difference that the figures themselves prove; empty where there is none.

        rows: Nsight's whole answer.
        """
        explain = {
            "nvtx_sum": self._never_closed,
            "nvtx_pushpop_sum": self._never_closed,
            "gpu_gaps": self._foreign_activity,
        }.get(source)
        return explain(key, figure, theirs, rows) if explain else ""

    def _never_closed(self, key: Key, figure: str, theirs: float, rows: Rows) -> str:
        name, style = key
        at = (name, style or "PushPop")
        unclosed = self.ranges.unclosed.get(at)
        if unclosed is None or figure != "total_ns":
            return ""
        closed_ns = self.ranges.by_key[at]["total_ns"] - unclosed.own_total_ns
        # If each of them were ended at one time, this is the sum of that time over them.
        ends, rest = divmod(int(theirs - closed_ns) + unclosed.start_sum_ns, unclosed.count)
        if rest or ends < self.ranges.last_ns:
            return ""
        return (
            f"{unclosed.count:,} never closed: Nsight ends them at the last NVTX event, perfdoc at the end "
            "of the capture"
        )

    def _foreign_activity(self, key: Key, figure: str, theirs: float, rows: Rows) -> str:
        ours = self.gaps.get(key)
        if ours is None or not len(ours.start_ns):
            return ""
        if ours.graphs:
            return f"{ours.graphs:,} CUDA graphs traced as a whole run there; this rule does not see them"
        spans = [(start, end) for device, start, end in gap_rows(rows) if device == key]
        if not spans:
            return ""
        start, end = (np.array(times, np.int64) for times in zip(*spans, strict=True))
        around = np.searchsorted(ours.start_ns, start, "right") - 1
        if (around < 0).any() or (end > ours.end_ns[np.maximum(around, 0)]).any():
            return ""
        return (
            "inside perfdoc's gaps Nsight counts activity that is no kernel, copy or set, such as the "
            "profiler's own overhead"
        )


Reader: TypeAlias = Callable[[Rows, Ours], Table]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One answer of Nsight, how to read it, and the table of perfdoc to hold against it."""

    name: str
    kind: Literal["stats", "rule", "recipe"]
    ask: str
    """The report, rule or recipe as given to nsys, with its arguments."""
    file: str = ""
    """Of a recipe: the table of its output that is read."""
    subject: str
    """What a row is about."""
    theirs: Reader
    """Raises ValueError where an answer is not as expected."""
    ours: Callable[[Ours], Table]
    tolerance: float = 0.0
    """Half of the last digit that Nsight prints."""


def _columns(name: str, style: str = "", **figures: str) -> Reader:
    """Read integers: the columns of the key, then the column of each figure."""

    def read(rows: Rows, ours: Ours) -> Table:
        return {
            (_cell(row, name), _cell(row, style) if style else ""): {
                figure: int(_cell(row, column)) for figure, column in figures.items()
            }
            for row in rows
        }

    return read


def device_key(process: int, ordinal: int) -> Key:
    """How a device is called in a comparison."""
    return f"device {ordinal}", f"process {process}"


def gap_rows(rows: Rows) -> Iterator[tuple[Key, int, int]]:
    """Device, start and end of every gap that the rule lists. Raises ValueError."""
    for row in rows:
        start = int(_cell(row, "Start (ns)"))
        device = device_key(int(_cell(row, "PID")), int(_cell(row, "Device ID")))
        yield device, start, start + int(_cell(row, "Duration (ns)"))


def their_gaps(rows: Rows, ours: Ours) -> Table:
    """Count and total of gaps by device; a device without a row has none. Raises ValueError."""
    table: dict[Key, dict[str, int]] = {device: {"count": 0, "total_ns": 0} for device in ours.gaps}
    for device, start, end in gap_rows(rows):
        at = table.setdefault(device, {"count": 0, "total_ns": 0})
        at["count"] += 1
        at["total_ns"] += end - start
    return table


def their_overlaps(rows: Rows, ours: Ours) -> Table:
    """Count and share beside the other kind, by kernel name. Raises ValueError.

    The recipe gives both shares for every name; which of them is the other kind's follows from what
    perfdoc takes the kernel for.
    """
    table: dict[Key, Figures] = {}
    for row in rows:
        name = _cell(row, "Name")
        figure, column = ("beside_compute_pct", "Compute Overlap")
        if name not in ours.overlaps.communication:
            figure, column = ("beside_communication_pct", "Communication Overlap")
        table[name, ""] = {"count": int(_cell(row, "Count")), figure: _number(_cell(row, column))}
    return table


def their_named_ranges(rows: Rows, ours: Ours) -> Table:
    """Count and total of ranges by name, as the recipe `nvtx_sum` has them. Raises ValueError."""
    return {
        (_cell(row, "Text"), ""): {
            "count": _number(_cell(row, "Count")),
            "total_ns": _number(_cell(row, "Sum")),
        }
        for row in rows
    }


def _number(text: str) -> float:
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(f"{text!r} is not a number")
    return value


def _cell(row: Mapping[str, str], column: str) -> str:
    try:
        return row[column]
    except KeyError:
        raise ValueError(f"it has no column {column!r}") from None


_COUNT, _TOTAL = "Instances", "Total Time (ns)"

SOURCES = (
    Source(
        name="nvtx_sum",
        kind="stats",
        ask="nvtx_sum",
        subject="range",
        theirs=_columns("Range", "Style", count=_COUNT, total_ns=_TOTAL),
        ours=lambda ours: ours.ranges.by_key,
    ),
    Source(
        name="nvtx_pushpop_sum",
        kind="stats",
        ask="nvtx_pushpop_sum",
        subject="range",
        theirs=_columns("Range", count=_COUNT, total_ns=_TOTAL),
        ours=Ours.push_pop,
    ),
    Source(
        name="nvtx_gpu_proj_sum",
        kind="stats",
        ask="nvtx_gpu_proj_sum",
        subject="range",
        theirs=_columns(
            "Range",
            "Style",
            count="Range Instances",
            projected_ns="Total Proj Time (ns)",
            gpu_operations="Total GPU Ops",
        ),
        ours=lambda ours: ours.projections,
    ),
    Source(
        name="cuda_gpu_kern_sum",
        kind="stats",
        ask="cuda_gpu_kern_sum",
        subject="kernel",
        theirs=_columns("Name", count=_COUNT, total_ns=_TOTAL),
        ours=lambda ours: ours.kernels,
    ),
    Source(
        name="gpu_gaps",
        kind="rule",
        ask="gpu_gaps:gap=0:rows=-1",
        subject="device",
        theirs=their_gaps,
        ours=Ours.gap_table,
    ),
    Source(
        name="nccl_gpu_overlap_trace",
        kind="recipe",
        ask="nccl_gpu_overlap_trace",
        file="grouped_trace.csv",
        subject="kernel",
        theirs=their_overlaps,
        ours=Ours.overlap_table,
        tolerance=0.05,
    ),
    Source(
        name="nvtx_sum (recipe)",
        kind="recipe",
        ask="nvtx_sum",
        file="all_stats.csv",
        subject="range name",
        theirs=their_named_ranges,
        ours=lambda ours: ours.named_ranges,
    ),
)
