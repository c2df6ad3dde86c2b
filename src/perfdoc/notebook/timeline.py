"""One step of every rank as a plotly figure: bars of the tracks that the diagnosis holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfdoc.notebook.charts import new_figure, plain
from perfdoc.notebook.errors import PerfdocError
from perfdoc.reports.charts.looks import KINDS, light_colours, look_of
from perfdoc.results.figures import brief, plural

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfdoc.results import Diagnosis, TimelineRank, TimelineTrack

_ALL_TRACKS = 4
"""So many ranks have all their tracks where none are named."""
_ROW_PX = 24


class _Bar(NamedTuple):
    row: str
    start_ms: float
    length_ms: float
    said: str


def timeline_figure(diagnosis: Diagnosis, ranks: Sequence[str] | None = None) -> go.Figure:
    """Rows are ranks' tracks, from the top; milliseconds since the first rank's step began.

    ranks: labels of those to draw. Raises PerfdocError where no timeline was made, and for unknown labels.
    """
    found = diagnosis.timeline
    if found is None or not found.ranks:
        reason = found.reason if found is not None else "the diagnosis is of a version without one"
        raise PerfdocError(f"there is no timeline: {reason}.")
    drawn = found.ranks
    if ranks is not None:
        known = {rank.label: rank for rank in drawn}
        if unknown := [label for label in ranks if label not in known]:
            raise PerfdocError(f"no rank {unknown[0]!r} is drawn; ranks are {', '.join(list(known)[:20])}.")
        drawn = [known[label] for label in ranks]
    order: list[str] = []
    bars: dict[tuple[str, str], list[_Bar]] = {}
    for at, rank in enumerate(drawn):
        for track in rank.tracks:
            if ranks is None and at >= _ALL_TRACKS and track.kind != "ledger":
                continue
            row = f"{plain(rank.label, 60)} · {track.kind}"
            order.append(row)
            _add(bars, row, rank, track)
    colours = light_colours()
    left_out = f", {plural(found.left_out, 'rank')} not drawn" if found.left_out else ""
    step = f"{plain(found.step, 80)}: " if found.step else ""
    figure = new_figure(f"{step}{plural(len(drawn), 'rank')}{left_out}")
    for kind, code in sorted(bars, key=lambda key: list(KINDS).index(key[0])):
        look = look_of(kind, code)
        those = bars[kind, code]
        figure.add_bar(
            orientation="h",
            y=[bar.row for bar in those],
            base=[bar.start_ms for bar in those],
            x=[bar.length_ms for bar in those],
            hovertext=[bar.said for bar in those],
            hovertemplate="%{hovertext}<extra></extra>",
            marker={
                "color": colours[look.colour],
                "line": {"width": 0},
                "pattern": {"shape": look.shape, "size": 6, "solidity": 0.2},
            },
            name=plain(look.label, 60),
            legendgroup=kind,
            legendgrouptitle={"text": kind},
        )
    figure.update_layout(barmode="overlay", bargap=0.15, height=180 + _ROW_PX * len(order))
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    figure.update_xaxes(title="ms")
    return figure


def _add(bars: dict[tuple[str, str], list[_Bar]], row: str, rank: TimelineRank, track: TimelineTrack) -> None:
    for start, length, code, name in zip(
        track.start_ns, track.duration_ns, track.code, track.name, strict=True
    ):
        if length <= 0:
            continue
        said = look_of(track.kind, track.codes[code]).label
        text = f"{plain(said, 60)}, {brief(length)}"
        text += f"<br>{plain(track.names[name], 100)}" if name >= 0 else ""
        bar = _Bar(row, (start + rank.offset_ns) / 1e6, length / 1e6, text)
        bars.setdefault((track.kind, track.codes[code]), []).append(bar)
