"""What a trace that a trainer wrote holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from perfdoc.traces.load import read_trace


def names_in(path: Path) -> list[str]:
    """The names of its ranges, one for each row."""
    trace = read_trace(path)
    return [trace.strings[i] for i in trace.ranges.name.tolist()]


def counted(names: Iterable[str]) -> Counter[str]:
    """Rows by name."""
    return Counter(names)
