"""Names that trainers emit, of ranges and of process groups, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.dimension_names import NAMES, dimension_of_function, dimension_of_group
from perfdoc.patterns import pattern_of
from perfdoc.profiling import vocabulary
from perfdoc.profiling.marks import parse_group_marks
from perfdoc.records import dataclass
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import among, unique

STEP_PATTERNS: tuple[tuple[str, str], ...] = (
    ("perfdoc", rf"^{re.escape(vocabulary.STEP)}( \d+)?$"),
    *((who, form) for who, form in NAMES.steps),
)
"""(where the form comes from, pattern on the whole name); the first that occurs wins."""


def named_as(word: str) -> re.Pattern[str]:
    """For the whole name of a range: a phase of the step by its word alone, whatever stands around it.

    >>> names = ("## forward ##", "Forward_Pass", "forward:mlp")
    >>> [bool(named_as("forward").fullmatch(name)) for name in names]
    [True, True, False]
    """
    return pattern_of(rf"(?i:[\W_]{{0,16}}{word}(?:[ _-](?:pass|step))?[\W_]{{0,16}})")


DATA_PATTERN = "|".join([rf"^{re.escape(vocabulary.DATA)}\b", *NAMES.data])
"""Ranges in which the training thread waits for a batch."""

GC_PATTERN = rf"^{re.escape(vocabulary.GC)}\b|(?i:^(python[ _-]?)?gc(\.collect)?$)|(?i:^garbage[ _-]collect)"
"""Ranges of Python's garbage collector."""

LOCK_WAIT_PATTERN = r"(?i)^wait(ing)? for (the )?gil$"
LOCK_HELD_PATTERN = r"(?i)^holding (the )?gil$"
"""Ranges of Nsight's --trace=python-gil."""

# Words of which a matching name holds at least one, in lower case: names are thinned out by them before any
# pattern is tried.
_STEP_HINTS = ("step", "iter", "run_training", "execute_", "[bs=")
_DATA_HINTS = (vocabulary.DATA, "data", "batch", "sample", "dali", "next", "input")
_GC_HINTS = (vocabulary.GC, "gc", "garbage")
_LOCK_HINTS = ("gil",)
_ARGUMENT = "input_op_ids"
"""Of PyTorch's emit_nvtx, behind each of its names: no hint of a batch."""


@dataclass(frozen=True, kw_only=True)
class KnownRanges:
    """Rows of Trace.ranges whose names mean something; found once for all devices of a trace."""

    steps: Sequence[tuple[str, I64]]
    """(where the form comes from, rows), for every form of STEP_PATTERNS that occurs, in that order."""
    data: I64
    gc: I64
    lock_waits: I64
    """Waits for the interpreter's lock."""
    lock_held: I64
    """Times in which a thread had it."""
    gloo: I64
    """PyTorch's ranges around gloo's collectives, on gloo's threads."""
    comm: I64
    """Ranges whose name tells the dimension of communication launched in them."""
    comm_dimension: I64
    """Index into DIMENSIONS for each row of `comm`."""
    communicators: Mapping[int, str]
    """Dimension by NCCL communicator id, from group marks inside the capture."""


_FORMS = (
    *((form, _STEP_HINTS) for _, form in STEP_PATTERNS),
    (DATA_PATTERN, _DATA_HINTS),
    (GC_PATTERN, _GC_HINTS),
    (LOCK_WAIT_PATTERN, _LOCK_HINTS),
    (LOCK_HELD_PATTERN, _LOCK_HINTS),
    ("^gloo:", ("gloo:",)),
)
"""(pattern, hints) of every form but communication's."""


def _known(name: str) -> tuple[list[int], int]:
    """Which of _FORMS a name has, and the index into DIMENSIONS of the communication
    it names (-1: none)."""
    low = name.lower().replace(_ARGUMENT, "")
    forms = [
        i
        for i, (pattern, hints) in enumerate(_FORMS)
        if any(map(low.__contains__, hints)) and pattern_of(pattern).search(name)
    ]
    dimension = dimension_of_function(name)
    return forms, -1 if dimension is None else DIMENSIONS.index(dimension)


def find_known_ranges(trace: Trace, data_pattern: re.Pattern[str] | None = None) -> KnownRanges:
    """Look for every known form of name. data_pattern: what the user says names data loading, beside them."""
    used = trace.range_names
    alike = trace.alike[used]
    # Which number it is says something in our own names of collectives alone.
    own = trace.range_names_like(lambda name: name.startswith(vocabulary.COLLECTIVE_PHASES))
    named: list[list[int]] = [[] for _ in _FORMS]
    table = np.full(len(trace.strings), -1, np.int64)
    for i in unique(alike).tolist():
        forms, table[i] = _known(trace.strings[i])
        for form in forms:
            named[form].append(i)
    table[used] = table[alike]
    table[own] = [_known(trace.strings[i])[1] for i in own]
    comm = rows_named(trace, np.flatnonzero(table >= 0).tolist())
    comm = comm[trace.ranges.kind[comm] != RangeKind.MARK]
    *steps, data, gc, lock_waits, lock_held, gloo = (
        rows_named(trace, used[among(alike, names)].tolist()) for names in named
    )
    if data_pattern is not None:
        data = np.union1d(data, ranges_matching(trace, data_pattern.search))
    return KnownRanges(
        steps=[(source, rows) for (source, _), rows in zip(STEP_PATTERNS, steps, strict=True) if len(rows)],
        data=data,
        gc=gc,
        lock_waits=lock_waits,
        lock_held=lock_held,
        gloo=gloo,
        comm=comm,
        comm_dimension=table[trace.ranges.name[comm]],
        communicators=_communicators(
            trace.strings[i] for i in trace.range_names_like(lambda n: n.startswith(vocabulary.GROUP_MARK))
        ),
    )


def ranges_matching(trace: Trace, matches: Callable[[str], object]) -> I64:
    """Rows of Trace.ranges whose name a user's test finds."""
    used = trace.range_names
    return rows_named(trace, [i for i in used.tolist() if matches(trace.strings[i])])


def _communicators(names: Iterable[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for mark in parse_group_marks(names):
        dimension = dimension_of_group(mark.description)
        if mark.communicator is not None and dimension is not None:
            found[mark.communicator] = dimension
    return found


def rows_named(trace: Trace, names: Sequence[int]) -> I64:
    """Rows of Trace.ranges that have one of these names."""
    if not names:
        return np.empty(0, np.int64)
    wanted = np.zeros(len(trace.strings), bool)
    wanted[np.asarray(names, np.int64)] = True
    return np.flatnonzero(wanted[trace.ranges.name])


def rows_on(trace: Trace, rows: I64, threads: I64) -> I64:
    """Those of these ranges that are of these threads, and no marks."""
    found: I64 = rows[among(trace.ranges.thread[rows], threads) & (trace.ranges.kind[rows] != RangeKind.MARK)]
    return found


def open_on(trace: Trace, rows: I64, threads: I64) -> Intervals:
    """When one of these ranges is open on one of these threads."""
    rows = rows_on(trace, rows, threads)
    return union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


def numbered(name: str) -> tuple[str, int, str] | None:
    """(what stands before the number that a step's name ends with, that, a bracket behind it); None of a
    name without a number.

    >>> numbered("epoch 1 (step 20)")
    ('epoch 1 (step ', 20, ')')
    """
    found = pattern_of(r"(?s)(.*?)([0-9]{1,18})(\)?)").fullmatch(name)
    return None if found is None else (found[1], int(found[2]), found[3])
