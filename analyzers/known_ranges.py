"""Names of ranges that trainers emit, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdoc.analyzers.intervals import I64
from perfdoc.profiling import vocabulary
from perfdoc.traces import Trace

STEP_PATTERNS: tuple[tuple[str, str], ...] = (
    ("perfdoc", rf"^{re.escape(vocabulary.STEP)}( \d+)?$"),
    ("Megatron-Bridge", r"^training_step_\d+$"),
    ("PyTorch profiler", r"^ProfilerStep\s?#\d+$"),
    # "Warm-up Step 1" and "Optimizer.step#…" must not match: the whole name is a step or it is none.
    ("common form", r"(?i)^((train|training|global)[ _-]?)?(step|iter|iteration)[ _#:=-]*\d+$"),
    ("common form", r"(?i)^(train|training)[ _-]?(step|iter|iteration)$"),
)
"""(where the form comes from, pattern on the whole name), the first that occurs wins."""

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


def matching_ranges(trace: Trace, pattern: str, *, names: I64 | None = None) -> I64:
    """Rows of trace.ranges whose whole name a pattern of ours finds.

    `names` may give the distinct name indices, where several patterns are tried on one trace.
    """
    if not len(trace.ranges):
        return np.empty(0, np.int64)
    names = distinct_names(trace) if names is None else names
    texts = pa.array([trace.strings[i] for i in names.tolist()], pa.string())
    return _rows_named(trace, names[pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)])


def matching_user_ranges(trace: Trace, pattern: re.Pattern[str]) -> I64:
    """Rows of trace.ranges whose name a user's expression finds (Python's syntax)."""
    names = distinct_names(trace)
    return _rows_named(
        trace, np.array([i for i in names.tolist() if pattern.search(trace.strings[i])], np.int64)
    )


def distinct_names(trace: Trace) -> I64:
    """Indices into trace.strings of all names that ranges have."""
    used = np.zeros(len(trace.strings), bool)
    used[trace.ranges.name] = True
    return np.flatnonzero(used)


def _rows_named(trace: Trace, names: Sequence[int] | I64) -> I64:
    wanted = np.zeros(len(trace.strings), bool)
    wanted[np.asarray(names, np.int64)] = True
    return np.flatnonzero(wanted[trace.ranges.name])
