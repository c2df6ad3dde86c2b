"""What the page needs for its charts: the picture, the data, the library, and what the policy must allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perfdoc.reports.charts.looks import KINDS
from perfdoc.reports.charts.plotly_source import Library, library
from perfdoc.reports.charts.timeline_data import timeline_data
from perfdoc.reports.charts.timeline_picture import TimelinePicture, timeline_picture
from perfdoc.reports.inlined import Inlined, asset, inlined
from perfdoc.results import Diagnosis

CHART_STYLE = "charts.css"
"""Among the page's assets: the style of all charts."""


@dataclass(frozen=True, kw_only=True)
class TimelineParts:
    """The timeline's section."""

    picture: TimelinePicture
    kinds: dict[str, str]
    """Kind of track by its title."""
    data: Markup
    library: Library | None
    """None where plotly is not installed: then the picture alone is shown."""
    scripts: Sequence[Inlined]
    """None without the library."""
    script_sources: Sequence[str]
    """What the policy must allow to run besides them: the library."""
    style_sources: Sequence[str]
    """Besides the page's own: the library makes an empty style and fills it rule by rule."""


def timeline_parts(diagnosis: Diagnosis) -> TimelineParts | None:
    """None where no timeline was measured."""
    picture = timeline_picture(diagnosis)
    if picture is None or diagnosis.timeline is None:
        return None
    found = library()
    return TimelineParts(
        picture=picture,
        kinds={title: kind for kind, title in KINDS.items()},
        data=timeline_data(diagnosis.timeline) if found is not None else Markup(),
        library=found,
        scripts=[asset("timeline.js")] if found is not None else [],
        script_sources=[found.source] if found is not None else [],
        style_sources=[inlined("").source] if found is not None else [],
    )
