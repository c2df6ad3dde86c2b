"""What the page needs for its charts: the picture, the data, the library, and what the policy must allow."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from perfdoc.diagnosis import Diagnosis
from perfdoc.reports.charts.looks import KINDS
from perfdoc.reports.charts.plotly_source import Library, library
from perfdoc.reports.charts.timeline_data import timeline_data
from perfdoc.reports.charts.timeline_picture import TimelinePicture, timeline_picture

_ASSETS = Path(__file__).parent.parent / "assets"


@dataclass(frozen=True, kw_only=True)
class TimelineParts:
    """The timeline's section."""

    picture: TimelinePicture
    kinds: dict[str, str]
    """Kind of track by its title."""
    data: Markup
    library: Library | None
    """None where plotly is not installed: then the picture alone is shown."""
    script: Markup
    """Empty without the library."""
    script_sources: Sequence[str]
    """What the policy must allow to run."""
    style_sources: Sequence[str]
    """Besides the page's own: the library makes an empty style and fills it rule by rule."""


def timeline_parts(diagnosis: Diagnosis) -> TimelineParts | None:
    """None where no timeline was measured."""
    picture = timeline_picture(diagnosis)
    if picture is None or diagnosis.timeline is None:
        return None
    found = library()
    script = _asset("timeline.js") if found is not None else ""
    return TimelineParts(
        picture=picture,
        kinds={title: kind for kind, title in KINDS.items()},
        data=timeline_data(diagnosis.timeline) if found is not None else Markup(),
        library=found,
        script=Markup(script),
        script_sources=[_source(script), found.source] if found is not None else [],
        style_sources=[_source("")] if found is not None else [],
    )


def chart_style() -> str:
    """The style of all charts; ours, and it holds no end tag."""
    return _asset("charts.css")


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
