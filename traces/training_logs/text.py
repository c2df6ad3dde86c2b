"""The lines of a log as text: without colours and bars that return to their line; numbers, clocks, ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from perfdoc.traces.errors import TraceError, require_regular

MAX_LINE = 20_000
"""Longer lines are cut in two: a progress bar that never ends its line is no step."""
_MAX_STEP_S = 86_400.0
_MAX_TFLOPS = 1e6

WORD = r"([^\s|]{0,40})"
"""What stands where a number should."""
NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{0,9})?(?:[eE][+-]?[0-9]{1,2})?)"
CLOCK = r"(20[0-9]{2}-[01][0-9]-[0-3][0-9])[ T]([0-2][0-9]:[0-5][0-9]:[0-6][0-9])(?:[.,]([0-9]{1,6}))?"
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,24}[A-Za-z]")
_PLAIN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{0,9})?(?:[eE][+-]?[0-9]{1,2})?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}\.[0-9]{1,9}")
_GROUPED_WHOLE = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,5}")
_RANK = re.compile(r"\s{0,4}(?:\[(?:rank|default|[\w.-]{1,60}:)?[0-9]{1,6}\]|[0-9]{1,6}):")


def lines_of(path: Path) -> Iterator[str]:
    """Each line, and each state of a bar that returned to the start of its line. Raises TraceError."""
    require_regular(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    with file:
        kept = b""
        while raw := file.readline(MAX_LINE):
            pieces = (kept + raw).split(b"\r")
            # A line that is read in parts is cut between two states of its bar, not within one.
            kept = b"" if raw.endswith(b"\n") or len(pieces[-1]) >= MAX_LINE else pieces.pop()
            yield from map(_text, pieces)
        if kept:
            yield _text(kept)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").rstrip("\n")
    return _COLOUR.sub("", text) if "\x1b" in text else text


def number_of(word: str) -> float | None:
    """A positive number, also with commas between thousands; None for nan, -5.0, 100,5 or a torn word.

    >>> [number_of(w) for w in ("12,936.1", "100,5", "1.5e3", "nan")]
    [12936.1, None, 1500.0, None]
    """
    if _GROUPED.fullmatch(word):
        return float(word.replace(",", ""))
    return float(word) if _PLAIN.fullmatch(word) else None


def whole_of(word: str) -> int | None:
    """A whole number, also with commas between thousands."""
    if _GROUPED_WHOLE.fullmatch(word):
        return int(word.replace(",", ""))
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else None


def figure_of(found: re.Match[str] | None) -> float | None:
    """The number that a pattern's first group found; None where it found none."""
    return None if found is None else number_of(found[1])


def seconds_of(found: re.Match[str] | None, of_a_second: float) -> float | None:
    """The time that a step's line gives, in seconds; None where it is none."""
    value = figure_of(found)
    return None if value is None else value / of_a_second


def step_ns(seconds: float | None) -> int | None:
    """A step's time; None where there is none, or no step takes it."""
    return round(seconds * 1e9) if seconds is not None and 0 < seconds < _MAX_STEP_S else None


def tflops_of(found: re.Match[str] | None) -> float | None:
    """No device does an exaFLOP a second: such a figure is a damaged line."""
    value = figure_of(found)
    return value if value is not None and 0 < value < _MAX_TFLOPS else None


def clock_of(found: re.Match[str] | None, first: int = 1) -> datetime | None:
    """The time of a match of CLOCK whose groups begin at `first`. The zone is unknown; UTC stands in for it,
    since only differences count."""
    if found is None:
        return None
    day, time, part = found.group(first, first + 1, first + 2)
    try:
        return datetime.fromisoformat(f"{day}T{time}.{(part or '0').ljust(6, '0')}").replace(tzinfo=UTC)
    except ValueError:
        return None


def rank_of(line: str) -> str:
    """Which process wrote a line, by what its launcher put before it: `[rank3]:`, `[default3]:`, `3:`."""
    found = _RANK.match(line)
    return found[0] if found is not None else ""
