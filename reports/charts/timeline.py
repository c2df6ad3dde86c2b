"""The timeline as the page draws it without a script: the ledger of every rank, and all tracks of a few.

What is wider than a column is drawn as it is. What is narrower shares one with its neighbours: there each
code takes the part of the height that it had of the time, so that areas are times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from markupsafe import Markup

from perfdoc.records import dataclass
from perfdoc.reports.charts.drawn import short
from perfdoc.reports.charts.looks import KINDS, Look, look_of
from perfdoc.reports.charts.marks import Mark, longest_stretch, marks_said, named_ranks, who_of
from perfdoc.reports.leaves import BUBBLE, parts_of
from perfdoc.reports.summary import drawn_ranks
from perfdoc.results import Diagnosis, Timeline, TimelineRank, TimelineTrack
from perfdoc.results.figures import duration, plural, share
from perfdoc.results.names import opening, shorten
from perfdoc.results.roles import MANY
from perfdoc.results.timeline import TYPICAL_FRAC, typical_ns


class Patch(NamedTuple):  # of which there are thousands: a dataclass takes five times as long to make
    """A rectangle: times since the step began, heights as fractions of the row from its top."""

    code: int
    start_ns: int
    end_ns: int
    top_frac: float
    bottom_frac: float


def patches(track: TimelineTrack, column_ns: int) -> Iterator[Patch]:
    """The track in columns of at least `column_ns`."""
    held: dict[int, int] = {}
    first = last = 0

    def flush() -> Iterator[Patch]:
        top = 0.0
        for code, ns in sorted(held.items()):
            bottom = top + ns / (last - first)
            yield Patch(code, first, last, top, min(bottom, 1.0))
            top = bottom
        held.clear()

    for start, length, code in zip(track.start_ns, track.duration_ns, track.code, strict=True):
        if length <= 0:
            continue
        end = start + length
        if held and (length >= column_ns or start - last >= column_ns or last - first >= column_ns):
            yield from flush()
        if length >= column_ns:
            yield Patch(code, start, end, 0.0, 1.0)
            continue
        if not held:
            first = start
        last = max(end, last) if held else end
        held[code] = held.get(code, 0) + length
    if held:
        yield from flush()


WIDTH = 1000
"""Units of a row's own coordinates."""
HEIGHT = 20
_FEW_RANKS = 4
"""All tracks are drawn of so many ranks; of more, the ledgers, and all tracks of the first."""
_COLUMNS = 500
_ALL_COLUMNS = 12_000
_NARROWEST_LETTER = 3.0
"""Per cent of the row that a stretch must have for each of its letters to be written."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All of one code in one row, as one path."""

    look: Look
    kind: str
    path: Markup
    title: str


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A code's letter in a stretch that is wide enough."""

    x: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One track of one rank."""

    label: str
    shapes: Sequence[Shape]
    letters: Sequence[Letter]
    spoken: str
    length: str
    mark: tuple[str, str, str] | None = None
    """(x, width, words) of the stretch that is outlined."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows under one heading."""

    heading: str
    rows: Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class TimelinePicture:
    """The picture, its words and its legend."""

    sentences: Sequence[str]
    groups: Sequence[Group]
    ticks: Sequence[tuple[str, str, str]]
    """(where, anchor, text)."""
    legend: Sequence[tuple[str, Sequence[Look]]]
    """(track, its codes)."""


def timeline_picture(diagnosis: Diagnosis) -> TimelinePicture | None:
    """None where no timeline was measured."""
    found = diagnosis.timeline
    if found is None or found.state != "measured" or not found.ranks:
        return None
    span = span_ns(found)
    rows = _chosen(diagnosis, found.ranks)
    named, mark = named_ranks(diagnosis), longest_stretch(diagnosis)
    columns = max(60, min(_COLUMNS, _ALL_COLUMNS // len(rows)))
    groups = [
        Group(
            heading="" if len(found.ranks) == 1 else KINDS["ledger"].capitalize(),
            rows=[
                replace(
                    _row(who_of(rank.label, named), rank, track, span, columns),
                    mark=_outline(mark, span) if mark is not None and mark.label == rank.label else None,
                )
                for rank in rows
                for track in rank.tracks
                if track.kind == "ledger"
            ],
        )
    ]
    detailed = found.ranks if len(found.ranks) <= _FEW_RANKS else found.ranks[:1]
    groups += [
        Group(
            heading=f"Tracks of {shorten(rank.label, 48)}",
            rows=[_row(track.kind, rank, track, span, _COLUMNS) for track in others],
        )
        for rank in detailed
        if (others := _in_order(rank))
    ]
    present: dict[str, dict[str, Look]] = {}
    for kind, look in (
        (track.kind, look_of(track.kind, track.codes[code]))
        for rank in found.ranks
        for track in rank.tracks
        for code in sorted(set(track.code))
    ):
        present.setdefault(kind, {})[look.code] = look
    return TimelinePicture(
        sentences=[
            *([text] if (text := marks_said(named, mark)) else []),
            *_sentences(found, diagnosis),
            *_part_said(len(rows), len(found.ranks)),
        ],
        groups=[group for group in groups if group.rows],
        ticks=_ticks(span),
        legend=[(KINDS[kind], list(present[kind].values())) for kind in KINDS if kind in present],
    )


def _chosen(diagnosis: Diagnosis, ranks: Sequence[TimelineRank]) -> Sequence[TimelineRank]:
    """Of many ranks those worth a picture of their own, then others from all over, in their order."""
    if len(ranks) <= MANY:
        return ranks
    roles = diagnosis.analyses.roles
    worth = [diagnosis.ranks[i].label for i in drawn_ranks(diagnosis.ranks, roles)] if roles else []
    place = {rank.label: i for i, rank in enumerate(ranks)}
    spread = [i * len(ranks) // MANY for i in range(MANY)]
    chosen = list(dict.fromkeys([*(place[label] for label in worth if label in place), *spread]))[:MANY]
    return [ranks[i] for i in sorted(chosen)]


def _outline(mark: Mark, span: int) -> tuple[str, str, str]:
    x, wide = (WIDTH * part / span for part in (mark.start_ns, mark.end_ns - mark.start_ns))
    return short(x), short(max(wide, 1.0)), mark.says


def _part_said(shown: int, of: int) -> Iterator[str]:
    if shown < of:
        yield f"{shown:,} of these ranks are listed first; the chart that zooms has all {of:,}."


def span_ns(found: Timeline) -> int:
    """From 0 to the end of the last rank's step."""
    return max(1, max(rank.offset_ns + rank.duration_ns for rank in found.ranks))


def _in_order(rank: TimelineRank) -> list[TimelineTrack]:
    tracks = {track.kind: track for track in rank.tracks}
    return [tracks[kind] for kind in KINDS if kind in tracks and kind != "ledger"]


def _sentences(found: Timeline, diagnosis: Diagnosis) -> list[str]:
    alone = len(found.ranks) == 1
    who = shorten(found.ranks[0].label, 48) if alone else plural(len(found.ranks), "rank")
    same = {rank.step for rank in found.ranks}
    if same == {""}:
        windows = {rank.label: rank.window.duration_ns for rank in diagnosis.ranks}
        part = any(rank.duration_ns < windows.get(rank.label, 0) for rank in found.ranks)
        drawn = "Middle part of the window" if part else "Whole window"
        said = [f"{drawn} of {who}: it has no steps."]
    elif found.step:
        said = [f"`{shorten(found.step, 64)}` of {who}, {_typical(found, diagnosis)}."]
    else:
        said = [f"One step of each of {who}, {_typical(found, diagnosis)}."]
    said.append("Intervals narrower than a pixel are stacked by their share of the time.")
    if any(part.leaf is BUBBLE for part in parts_of(diagnosis)):
        said.append(f"The {BUBBLE.label} is drawn as PP.")
    if not alone and found.resolution_ns is not None:
        said.append(f"Clocks are aligned; skew below {duration(found.resolution_ns)} is within clock error.")
    said += [opening(note) + "." for note in found.notes]
    return said


def _typical(found: Timeline, diagnosis: Diagnosis) -> str:
    """How the steps that are drawn compare with all steps of their ranks."""
    lengths = {rank.label: [s.duration_ns for s in rank.window.step_list] for rank in diagnosis.ranks}
    away, only, of, shows = 0.0, True, "median", True
    for rank in found.ranks:
        own = lengths.get(rank.label) or [rank.duration_ns]
        middle, what = typical_ns(own)
        away = max(away, abs(rank.duration_ns - middle) / max(1, middle))
        only, of = only and len(own) == 1, what if what == "mean" else of
        shows = shows and rank.duration_ns >= middle
    if only:
        return "the only step captured"
    if away <= TYPICAL_FRAC:
        return f"within {share(TYPICAL_FRAC)} of the {of} step of each rank"
    if of == "mean" and shows:
        return "no shorter than the mean step: most steps are, and lose less"
    return f"up to {share(away)} from the {of} step of its rank"


def _row(label: str, rank: TimelineRank, track: TimelineTrack, span: int, columns: int) -> Row:
    parts: dict[int, list[str]] = {}
    letters = []
    for patch in patches(track, max(1, span // columns)):
        x = WIDTH * (rank.offset_ns + patch.start_ns) / span
        wide = max(WIDTH * (patch.end_ns - patch.start_ns) / span, 0.05)
        y, high = HEIGHT * patch.top_frac, HEIGHT * (patch.bottom_frac - patch.top_frac)
        at, whole = short(x), high == HEIGHT
        tall = f"v{HEIGHT}" if whole else f"v{short(high)}"
        parts.setdefault(patch.code, []).append(f"M{at} {short(y) if y else 0}h{short(wide)}{tall}H{at}")
        if whole and 100 * wide / WIDTH >= _NARROWEST_LETTER:
            text = look_of(track.kind, track.codes[patch.code]).letter
            if 100 * wide / WIDTH >= _NARROWEST_LETTER * len(text):
                letters.append(Letter(x=f"{short((x + wide / 2) / WIDTH * 100)}%", text=text))
    sums = dict.fromkeys(sorted(parts), 0)
    for code, length in zip(track.code, track.duration_ns, strict=True):
        sums[code] = sums.get(code, 0) + length
    looks = {code: look_of(track.kind, track.codes[code]) for code in parts}
    return Row(
        label=label,
        shapes=[
            Shape(
                look=looks[code],
                kind=track.kind,
                path=Markup("".join(parts[code])),
                title=f"{looks[code].label}: {duration(sums[code])}",
            )
            for code in sorted(parts)
        ],
        letters=letters,
        spoken=f"{label}, {KINDS[track.kind]}: "
        + ", ".join(f"{looks[code].label} {duration(sums[code])}" for code in sorted(parts)),
        length=duration(rank.duration_ns),
    )


def _ticks(span: int) -> list[tuple[str, str, str]]:
    anchors = ("start", "middle", "middle", "middle", "end")
    return [(f"{25 * i}%", anchor, duration(span * i // 4)) for i, anchor in enumerate(anchors)]
