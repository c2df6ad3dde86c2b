"""The timeline as data for the page's script: whole numbers in columns, and how each code looks."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from perfdoc.diagnosis import Timeline, TimelineRank, TimelineTrack
from perfdoc.reports.charts.looks import KINDS, look_of
from perfdoc.reports.charts.timeline_picture import span_ns
from perfdoc.reports.names import shorten

_NAME = 96


def timeline_data(found: Timeline) -> Markup:
    """JSON for a script element of a data type: no character in it can end the element."""
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
    data = {
        "span": span_ns(found),
        "kinds": KINDS,
        "looks": {kind: list(of_kind.values()) for kind, of_kind in codes.items()},
        "ranks": [
            _rank(rank, {kind: list(of_kind) for kind, of_kind in codes.items()}) for rank in found.ranks
        ],
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _rank(rank: TimelineRank, codes: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "label": shorten(rank.label, 48),
        "offset": rank.offset_ns,
        "length": rank.duration_ns,
        "step": shorten(rank.step, 64),
        "aligned": rank.aligned,
        "tracks": {track.kind: _track(track, codes[track.kind]) for track in rank.tracks},
    }


def _track(track: TimelineTrack, codes: list[str]) -> dict[str, Any]:
    """Starts as distances from the end before, which mostly are 0."""
    number = [codes.index(code) for code in track.codes]
    gaps, at = [], 0
    for start, length in zip(track.start_ns, track.duration_ns, strict=True):
        gaps.append(start - at)
        at = start + length
    return {
        "names": [shorten(name, _NAME) for name in track.names],
        "gap": gaps,
        "length": track.duration_ns,
        "code": [number[code] for code in track.code],
        "name": track.name,
        "held": track.stretches,
        "count": track.count,
    }
