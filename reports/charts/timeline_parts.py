"""What the page needs for its timeline: the picture, the data for its script, the library, the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any

from markupsafe import Markup

from perfdoc.records import dataclass
from perfdoc.reports.charts.looks import KINDS, look_of
from perfdoc.reports.charts.marks import Mark, longest_stretch, named_ranks, who_of
from perfdoc.reports.charts.timeline import TimelinePicture, span_ns, timeline_picture
from perfdoc.reports.inlined import Inlined, island, library
from perfdoc.results import Diagnosis, Timeline, TimelineRank, TimelineTrack
from perfdoc.results.names import shorten

_NAME = 96
_NAMES = 800
"""Different names over all tracks, those of most segments. Ranks mostly run the same kernels, so more of them
come only from a trace that means to make the page long."""


def timeline_data(found: Timeline, named: Set[str] = frozenset(), mark: Mark | None = None) -> Markup:
    """JSON for a script element of a data type: no character in it can end the element. named, mark: what is
    marked of the verdict."""
    codes = {
        kind: {
            code: [look.label, look.letter, look.colour, look.shape]
            for rank in found.ranks
            for track in rank.tracks
            if track.kind == kind
            for code in track.codes
            for look in [look_of(kind, code)]
        }
        for kind in KINDS
    }
    names = _names(found)
    place = {name: i for i, name in enumerate(names)}
    data = {
        "names": names,
        "span": span_ns(found),
        "kinds": KINDS,
        "looks": {kind: list(of_kind.values()) for kind, of_kind in codes.items()},
        "mark": None if mark is None else [who_of(mark.label, named), mark.start_ns, mark.end_ns],
        "ranks": [
            _rank(rank, named, {kind: list(of_kind) for kind, of_kind in codes.items()}, place)
            for rank in found.ranks
        ],
    }
    return island(data)


def _names(found: Timeline) -> list[str]:
    """Every name that segments point at, shortened, once."""
    counted: Counter[str] = Counter()
    for rank in found.ranks:
        for track in rank.tracks:
            short = [shorten(name, _NAME) for name in track.names]
            counted.update(short[i] for i in track.name if i >= 0)
    return [name for name, _ in counted.most_common(_NAMES)]


def _rank(
    rank: TimelineRank, named: Set[str], codes: dict[str, list[str]], place: dict[str, int]
) -> dict[str, Any]:
    return {
        "label": who_of(rank.label, named),
        "offset": rank.offset_ns,
        "length": rank.duration_ns,
        "step": shorten(rank.step, 64),
        "aligned": rank.aligned,
        "tracks": {track.kind: _track(track, codes[track.kind], place) for track in rank.tracks},
    }


def _track(track: TimelineTrack, codes: list[str], place: dict[str, int]) -> dict[str, Any]:
    """Starts as distances from the end before, which mostly are 0; names as numbers of the page's."""
    number = [codes.index(code) for code in track.codes]
    names = [place.get(shorten(name, _NAME), -1) for name in track.names]
    gaps, at = [], 0
    for start, length in zip(track.start_ns, track.duration_ns, strict=True):
        gaps.append(start - at)
        at = start + length
    return {
        "gap": gaps,
        "length": track.duration_ns,
        "code": [number[code] for code in track.code],
        "name": [names[i] if i >= 0 else -1 for i in track.name],
        "held": track.stretches,
        "count": track.count,
    }


CHART_STYLE = "charts.css"
"""Among the page's assets: the style of all charts."""


@dataclass(frozen=True, kw_only=True)
class TimelineParts:
    """The timeline's section."""

    picture: TimelinePicture
    kinds: dict[str, str]
    """Kind of track by its title."""
    data: Markup
    library: Inlined | None
    """None where plotly is not installed: then the picture alone is shown."""


def timeline_parts(diagnosis: Diagnosis) -> TimelineParts | None:
    """None where no timeline was measured."""
    timeline, picture, found = diagnosis.timeline, timeline_picture(diagnosis), library()
    if picture is None or timeline is None:
        return None
    ranks, longest = named_ranks(diagnosis), longest_stretch(diagnosis)
    data = timeline_data(timeline, ranks, longest) if found is not None else Markup()
    return TimelineParts(picture=picture, kinds={v: k for k, v in KINDS.items()}, data=data, library=found)
