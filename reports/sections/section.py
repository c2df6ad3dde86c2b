"""What every renderer can show: a title, sentences, tables of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from perfdoc.results import figures
from perfdoc.results.names import shorten


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell, fit to be shown as it is."""

    text: str
    ns: int | None = None
    """The time that it shows, for the page's own checks."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table. align has a letter per column: l left, r right, n a name that may be shortened."""

    caption: str = ""
    head: Sequence[str]
    align: str
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows that the diagnosis has and the table has not."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report."""

    key: str
    """Anchor on the page."""
    title: str
    sentences: Sequence[str] = field(default_factory=list)
    """Prose of ours; quoted names stand in `code` quotes."""
    grids: Sequence[Grid] = field(default_factory=list)
    folded: str = ""
    """What the page says of the tables in place of them, until somebody opens them; empty: they are open. A
    terminal shows none of them."""
    draw: Callable[[], Markup | None] | None = None
    """A picture for the page alone, drawn when it is asked for; what it shows is said in words or tables as
    well."""

    @property
    def pictures(self) -> Sequence[Markup]:
        """What there is to be seen."""
        picture = self.draw() if self.draw is not None else None
        return [] if picture is None else [picture]


def opening(text: str) -> str:
    """A text as the start of a sentence."""
    return text[:1].upper() + text[1:]


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
