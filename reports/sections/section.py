"""What every renderer can show: a title, sentences, notes, tables of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeVar

from markupsafe import Markup

from perfdoc.records import dataclass
from perfdoc.results import figures
from perfdoc.results.names import shorten

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell, fit to be shown as it is."""

    text: str
    ns: int | None = None
    """The time that it shows, for the page's own checks."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a bar beside a row, in per cent of the bar's place."""

    start: float
    width: float
    css: str
    """Of its colour and pattern."""
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table. align has a letter per column: l left, r right, n a name that may be shortened."""

    caption: str = ""
    head: Sequence[str]
    align: str
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows that the diagnosis has and the table has not."""
    key: str = ""
    """Its id on the page; empty: it needs none."""
    folded: bool = False
    """The page shows its caption until somebody opens it; a terminal shows none of it."""
    dense: bool = False
    """In small print."""
    drawn: Sequence[Sequence[Stretch]] = ()
    """A bar for each row, for the page alone; rows beyond have none."""
    bar: Sequence[tuple[str, str, int]] = ()
    """(letter, family, ns): a bar above the table, for a terminal alone."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """A finding, a doubt or a gap: a heading, what it is, and labelled sentences such as what to do."""

    title: str
    text: str
    lines: Sequence[tuple[str, str]] = ()
    """(label, words)."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report."""

    key: str
    """Anchor on the page."""
    title: str
    sentences: Sequence[str] = field(default_factory=list)
    """Prose of ours; quoted names stand in `code` quotes."""
    notes: Sequence[Note] = ()
    notes_left_out: int = 0
    grids: Sequence[Grid] = field(default_factory=list)
    draw: Callable[[], Markup | None] | None = None
    """A picture for the page alone, drawn when it is asked for; what it shows is said in words or tables as
    well."""

    @property
    def pictures(self) -> Sequence[Markup]:
        """What there is to be seen."""
        picture = self.draw() if self.draw is not None else None
        return [] if picture is None else [picture]


def grid_of(
    rows: Sequence[Row],
    *columns: tuple[str, str, Callable[[Row], Cell]],
    caption: str = "",
    most: int | None = None,
    left_out: int = 0,
    key: str = "",
    folded: bool = False,
) -> Grid:
    """A table of these rows, at most so many. columns: (heading, letter of align, cell of a row).

    left_out: rows that were left out before.
    """
    return Grid(
        caption=caption,
        head=[head for head, _, _ in columns],
        align="".join(how for _, how, _ in columns),
        rows=[[cell(row) for _, _, cell in columns] for row in rows[:most]],
        left_out=left_out + (max(0, len(rows) - most) if most is not None else 0),
        key=key,
        folded=folded,
    )


def stopped(text: str) -> str:
    """A text as a whole sentence, with its full stop."""
    return text if text.endswith((".", "!", "?", "…")) else text + "."


def name(text: str, limit: int = 96) -> Cell:
    """A name out of a trace."""
    return Cell(text=shorten(text, limit) if text else "—")


def word(text: str | int) -> Cell:
    """A word or number of ours."""
    return Cell(text=shorten(str(text)))


def time(ns: int | None) -> Cell:
    """A duration."""
    return Cell(text=figures.duration(ns), ns=ns)


def share(frac: float | None) -> Cell:
    """A fraction as a percentage."""
    return Cell(text=figures.UNKNOWN if frac is None else figures.share(frac))


def count(number: int | None) -> Cell:
    """A whole number."""
    return Cell(text=figures.UNKNOWN if number is None else figures.count(number))


def size(number: int | None) -> Cell:
    """Bytes."""
    return Cell(text=figures.size(number))


def rate(gbps: float | None) -> Cell:
    """A bandwidth in GB/s."""
    return Cell(text=figures.bandwidth(gbps))
