"""Names of ranges that trainers emit, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.dimension_names import RANGE_HINTS, dimension_of_group, dimension_of_range
from perfdoc.profiling import vocabulary
from perfdoc.profiling.marks import parse_group_marks
from perfdoc.traces import RangeKind, Trace

STEP_PATTERNS: tuple[tuple[str, str], ...] = (
    ("perfdoc", rf"^{re.escape(vocabulary.STEP)}( \d+)?$"),
    ("Megatron-Bridge", r"^training_step_\d+$"),
    ("PyTorch profiler", r"^ProfilerStep\s?#\d+$"),
    # "Warm-up Step 1" and "Optimizer.step#…" must not match: the whole name is a step or it is none.
    ("common form", r"(?i)^((train|training|global)[ _-]?)?(step|iter|iteration)[ _#:=-]*\d+$"),
    ("common form", r"(?i)^(train|training)[ _-]?(step|iter|iteration)$"),
)
"""(where the form comes from, pattern on the whole name); the first that occurs wins."""

DATA_PATTERN = (
    rf"^{re.escape(vocabulary.DATA)}\b"
    r"|^enumerate\(DataLoader\)#"
    r"|^DataLoader"
    r"|(?i:^data[ _-]?load(er|ing)?\b)"
    r"|(?i:^(batch[ _-]generator|get[ _]batch)\b)"
)
"""Ranges in which the training thread waits for a batch (PyTorch, Megatron-LM, common forms)."""

GC_PATTERN = rf"^{re.escape(vocabulary.GC)}\b|(?i:^(python[ _-]?)?gc(\.collect)?$)|(?i:^garbage[ _-]collect)"
"""Ranges of Python's garbage collector."""

# Words of which a matching name holds at least one, in lower case. Half a million distinct names (PyTorch's
# emit_nvtx numbers every operator) are thinned out by them before any pattern is tried.
_STEP_HINTS = ("step", "iter")
_DATA_HINTS = (vocabulary.DATA, "dataloader", "data", "batch")
_GC_HINTS = (vocabulary.GC, "gc", "garbage")


@dataclass(frozen=True, kw_only=True)
class KnownRanges:
    """Rows of Trace.ranges whose names mean something; found once for all devices of a trace."""

    steps: Sequence[tuple[str, I64]]
    """(where the form comes from, rows), for every form of STEP_PATTERNS that occurs, in that order."""
    data: I64
    gc: I64
    comm: I64
    """Ranges whose name tells the dimension of communication launched in them."""
    comm_dimension: I64
    """Index into DIMENSIONS for each row of `comm`."""
    communicators: Mapping[int, str]
    """Dimension by NCCL communicator id, from group marks inside the capture."""


def find_known_ranges(trace: Trace) -> KnownRanges:
    """Look for every known form of name."""
    used = trace.range_names
    lowered = [(i, trace.strings[i], trace.strings[i].lower()) for i in used.tolist()]

    def find(pattern: str, hints: Sequence[str]) -> I64:
        search = re.compile(pattern).search
        names = [i for i, text, low in lowered if any(h in low for h in hints) and search(text)]
        return _rows_named(trace, names)

    dimension_of = {
        i: DIMENSIONS.index(dimension)
        for i, text, low in lowered
        if any(h in low for h in RANGE_HINTS) and (dimension := dimension_of_range(text))
    }
    table = np.full(len(trace.strings), -1, np.int64)
    table[list(dimension_of)] = list(dimension_of.values())
    comm = _rows_named(trace, list(dimension_of))
    comm = comm[trace.ranges.kind[comm] != RangeKind.MARK]
    steps = [(source, find(form, _STEP_HINTS)) for source, form in STEP_PATTERNS]
    return KnownRanges(
        steps=[(source, rows) for source, rows in steps if len(rows)],
        data=find(DATA_PATTERN, _DATA_HINTS),
        gc=find(GC_PATTERN, _GC_HINTS),
        comm=comm,
        comm_dimension=table[trace.ranges.name[comm]],
        communicators=_communicators(trace.strings[i] for i in used.tolist()),
    )


def ranges_matching(trace: Trace, matches: Callable[[str], object]) -> I64:
    """Rows of Trace.ranges whose name a user's test finds."""
    used = trace.range_names
    return _rows_named(trace, [i for i in used.tolist() if matches(trace.strings[i])])


def _communicators(names: Iterable[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for mark in parse_group_marks(names):
        dimension = dimension_of_group(mark.description)
        if mark.communicator is not None and dimension is not None:
            found[mark.communicator] = dimension
    return found


def _rows_named(trace: Trace, names: Sequence[int]) -> I64:
    if not names:
        return np.empty(0, np.int64)
    wanted = np.zeros(len(trace.strings), bool)
    wanted[np.asarray(names, np.int64)] = True
    return np.flatnonzero(wanted[trace.ranges.name])
