"""The worst instance of what a rule fires on, as a small timeline: every bar in its place, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfdoc.reports.charts.drawn import short
from perfdoc.reports.charts.looks import KINDS, Look, look_of
from perfdoc.results import Diagnosis, RuleResult, TimelineRank, TimelineTrack, WorstInstance
from perfdoc.results.figures import duration, plural
from perfdoc.results.names import shorten

_RANKS = 8
_BARS = 400
"""Of one excerpt; perfdoc writes about 200, and a diagnosis may come from elsewhere."""
_LABELS = {
    "ledger": "ledger",
    "compute": "kernels",
    "communication": "comm",
    "host": "host calls",
    "ranges": "ranges",
    "passes": "passes",
}
_NAMED = ("ranges", "passes", "communication")
"""Tracks whose bars show their names where they are wide enough; others show letters."""
_LETTER_FRAC, _NAME_FRAC, _EDGE_FRAC = 0.03, 0.05, 0.006
"""Of the width: narrower bars have no letter, no name, no edge."""
_LEAST_WIDTH = 0.12
"""Per cent: nothing is too short to be seen."""
_SLIM_FRAC = 0.1
"""Below, text has no room on a narrow screen."""
_TICKS_APART = 0.14
_NAME = 96


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stretch, or several that were pooled."""

    x: str
    width: str
    look: Look
    kind: str
    title: str
    start_ns: int
    """Since the excerpt begins."""
    ns: int
    text: str
    """A name, or a letter; empty where the bar is too narrow."""
    is_name: bool
    edged: bool
    slim: bool
    """Without text on a narrow screen."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A time below the tracks."""

    x: str
    anchor: str
    text: str
    slim: bool
    """Left out on a narrow screen."""


@dataclass(frozen=True, kw_only=True)
class CutRow:
    """One track of one rank."""

    label: str
    bars: Sequence[Bar]
    spoken: str


@dataclass(frozen=True, kw_only=True)
class CutRank:
    """The tracks of one rank."""

    heading: str
    """Empty where only one is drawn."""
    rows: Sequence[CutRow]


@dataclass(frozen=True, kw_only=True)
class ExcerptPicture:
    """A worst instance, drawn."""

    says: str
    where: str
    """Rank, step and exact times."""
    ranks: Sequence[CutRank]
    mark: tuple[str, str, str]
    """(where the instance begins, how wide it is, its length)."""
    start_ns: int
    """Of the instance, on its capture's clock."""
    end_ns: int
    ticks: Sequence[Tick]
    legend: Sequence[tuple[str, Look]]
    """(kind of track, what occurs in it), without names alone."""
    notes: Sequence[str]


def excerpt_picture(rule: RuleResult) -> ExcerptPicture | None:
    """None where the rule names no instance, or nothing was kept of it."""
    found = rule.worst
    if found is None or not found.ranks or found.ranks[0].duration_ns <= 0:
        return None
    own = found.ranks[0]
    span, begin = own.duration_ns, found.start_ns - own.start_ns
    length = max(0, found.end_ns - found.start_ns)
    drawn = found.ranks[:_RANKS]
    spare = [_BARS]
    ranks = [
        CutRank(
            heading=shorten(rank.label, 48) if len(drawn) > 1 else "",
            rows=[_row(rank, track, span, spare) for track in _in_order(rank)],
        )
        for rank in drawn
    ]
    present: dict[tuple[str, str], Look] = {}
    for rank in ranks:
        for row in rank.rows:
            present.update({(bar.kind, bar.look.code): bar.look for bar in row.bars if bar.kind != "ranges"})
    left, wide = _per_cent(begin, span), max(_LEAST_WIDTH, 100 * min(length, span) / span)
    return ExcerptPicture(
        says=found.says,
        where=_where(found),
        ranks=ranks,
        mark=(f"{short(left)}%", f"{short(wide)}%", duration(length)),
        start_ns=found.start_ns,
        end_ns=found.end_ns,
        ticks=list(_ticks(begin, length, span)),
        legend=[(kind, look) for (kind, _), look in present.items()],
        notes=list(_notes(found, len(drawn))),
    )


def excerpt_looks(diagnosis: Diagnosis) -> list[tuple[str, Look]]:
    """(kind, look) of everything that excerpts draw, once each: the page defines a fill for it."""
    found = {
        look.id(kind): (kind, look)
        for rule in diagnosis.rules
        if rule.worst is not None
        for rank in rule.worst.ranks[:_RANKS]
        for track in rank.tracks
        for kind in [track.kind]
        for code in set(track.code)
        if 0 <= code < len(track.codes)
        for look in [look_of(kind, track.codes[code])]
    }
    return list(found.values())


def _in_order(rank: TimelineRank) -> list[TimelineTrack]:
    order = list(_LABELS)
    return sorted((t for t in rank.tracks if t.kind in _LABELS), key=lambda t: order.index(t.kind))


def _row(rank: TimelineRank, track: TimelineTrack, span: int, spare: list[int]) -> CutRow:
    bars = list(_bars(track, span))[: max(0, spare[0])]
    spare[0] -= len(bars)
    sums: dict[str, int] = {}
    for bar in bars:
        sums[bar.look.label] = sums.get(bar.look.label, 0) + bar.ns
    said = ", ".join(f"{label} {duration(ns)}" for label, ns in sums.items())
    dimensions = {track.codes[c] for c in set(track.code) if 0 <= c < len(track.codes)}
    of_one = track.kind == "communication" and len(dimensions) == 1
    label = look_of("communication", dimensions.pop()).label if of_one else _LABELS[track.kind]
    return CutRow(
        label=shorten(label, 48),
        bars=bars,
        spoken=f"{shorten(rank.label, 48)}, {KINDS[track.kind]}: {said}",
    )


def _bars(track: TimelineTrack, span: int) -> Iterator[Bar]:
    columns = (track.start_ns, track.duration_ns, track.code, track.name, track.stretches)
    for start, length, code, name, stretches in zip(*columns, strict=False):
        if length <= 0 or not 0 <= code < len(track.codes) or start >= span or start + length <= 0:
            continue
        look = look_of(track.kind, track.codes[code])
        called = shorten(track.names[name], _NAME) if 0 <= name < len(track.names) else ""
        if called and track.kind == "passes":
            called = f"micro-batch {called}"
        part = length / span
        show_name = track.kind in _NAMED and called and part >= _NAME_FRAC
        pooled = f", {plural(stretches, 'stretch', 'stretches')} together" if stretches > 1 else ""
        yield Bar(
            x=f"{short(_per_cent(start, span))}%",
            width=f"{short(max(_LEAST_WIDTH, 100 * part))}%",
            look=look,
            kind=track.kind,
            title=f"{look.label}{': ' + called if called else ''}: {duration(length)} from "
            f"{duration(start)} on{pooled}",
            start_ns=start,
            ns=length,
            text=called if show_name else look.letter if part >= _LETTER_FRAC else "",
            is_name=bool(show_name),
            edged=part >= _EDGE_FRAC,
            slim=part < _SLIM_FRAC,
        )


def _per_cent(ns: int, span: int) -> float:
    return 100 * min(max(ns / span, 0.0), 1.0)


def _where(found: WorstInstance) -> str:
    step = f", `{shorten(found.step, 64)}`" if found.step else ""
    return (
        f"{shorten(found.label, 48)}{step}: {found.start_ns:,} to {found.end_ns:,} ns on its capture's clock."
    )


def _ticks(begin: int, length: int, span: int) -> Iterator[Tick]:
    """Times from when the instance begins; the outer ones only where there is room for them."""
    a, b = begin / span, (begin + length) / span
    if a >= _TICKS_APART:
        yield Tick(x="0%", anchor="start", text=duration(-begin), slim=True)
    anchor = "start" if a < 0.05 else "middle"
    yield Tick(x=f"{short(_per_cent(begin, span))}%", anchor=anchor, text="0", slim=False)
    if b - a >= _TICKS_APART / 2 and b <= 1:
        anchor = "end" if b > 0.9 else "middle"
        x, slim = f"{short(_per_cent(begin + length, span))}%", b - a < 2 * _TICKS_APART
        yield Tick(x=x, anchor=anchor, text=duration(length), slim=slim)
    if 1 - b >= _TICKS_APART:
        yield Tick(x="100%", anchor="end", text=duration(span - begin), slim=True)


def _notes(found: WorstInstance, drawn: int) -> Iterator[str]:
    if len(found.ranks) > 1 and found.resolution_ns is not None:
        apart = duration(found.resolution_ns)
        yield f"Clocks are aligned; differences between ranks up to {apart} mean nothing."
    if len(found.ranks) > drawn:
        yield f"{plural(len(found.ranks) - drawn, 'more rank')} in diagnosis.json."
