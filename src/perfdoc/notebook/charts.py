"""The waterfall, the front of time against memory and one step of every rank as plotly figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import escape

from perfdoc.notebook.errors import PerfdocError
from perfdoc.reports.charts.looks import KINDS, light_colours, look_of
from perfdoc.reports.leaves import LABELS
from perfdoc.results.figures import GIB, brief, plural, share, significant
from perfdoc.results.names import prose, shorten
from perfdoc.results.ranks import LEAVES
from perfdoc.tune.words import changes_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfdoc.results import Diagnosis, TimelineRank, TimelineTrack
    from perfdoc.tune.result import Row, Tuning


def plain(text: str, limit: int = 160) -> str:
    """A text in a figure, where `<b>` and `<a>` would be markup: one line, escaped."""
    return str(escape(shorten(text, limit)))


def new_figure(title: str) -> go.Figure:
    """Empty, in the report's colours."""
    import plotly.graph_objects as go

    colours = light_colours()
    return go.Figure(
        layout={
            "title": {"text": title, "font": {"size": 15}},
            "template": "plotly_white",
            "font": {"color": colours["ink"]},
            "paper_bgcolor": colours["card"],
            "plot_bgcolor": colours["card"],
            "height": 440,
            "margin": {"l": 20, "r": 20, "t": 60, "b": 40},
        }
    )


def waterfall_figure(diagnosis: Diagnosis) -> go.Figure:
    """Shares of the ranks' windows: all of the time, every loss from the last in the ledger up, what is left.

    Raises PerfdocError where there is no rank.
    """
    if not diagnosis.ranks:
        raise PerfdocError("no rank was measured: there is no ledger to draw.")
    mfu = diagnosis.mfu
    if mfu.waterfall:
        shares = {bar.name: bar.frac for bar in mfu.waterfall if bar.total_ns}
        end, title = "ideal", f"MFU {share(mfu.value)}: where the rest went"
    else:
        whole = sum(rank.window.duration_ns for rank in diagnosis.ranks)
        sums = {leaf: sum(rank.ledger_ns.by_leaf[leaf] for rank in diagnosis.ranks) for leaf in LEAVES}
        shares = {leaf: ns / whole for leaf, ns in sums.items() if ns and whole}
        end, title = "compute", f"Compute, and where the rest went (no MFU: {plain(prose(mfu.reason, 120))})"
    losses = [(name, frac) for name, frac in reversed(shares.items()) if name != end]
    label = "MFU" if end == "ideal" else LABELS[end]
    colours = light_colours()
    figure = new_figure(title)
    figure.add_waterfall(
        x=["all time", *(_words(name) for name, _ in losses), label],
        y=[100.0, *(-100 * frac for _, frac in losses), 0.0],
        measure=["absolute", *("relative" for _ in losses), "total"],
        text=["100 %", *(f"-{share(frac)}" for _, frac in losses), share(shares.get(end, 0.0))],
        decreasing={"marker": {"color": colours["dp"]}},
        totals={"marker": {"color": colours["ideal" if end == "ideal" else "compute"]}},
        connector={"line": {"color": colours["line"]}},
        hovertemplate="%{x}: %{text}<extra></extra>",
    )
    figure.update_yaxes(title="% of the ranks' windows", range=[0, 105])
    return figure


def _words(name: str) -> str:
    known = LABELS.get(name, name.replace("compute.", "compute: ").replace("_", " "))
    return plain(known)


def front_figure(found: Tuning) -> go.Figure:
    """Memory to the right in GiB, step time upwards in ms, with bands; where memory is not known, bars of the
    step time."""
    rows, colours = found.rows, light_colours()
    figure = new_figure(plain(prose(found.verdict, 160)))
    texts = [_said(row) for row in rows]
    bands = {
        "type": "data",
        "symmetric": False,
        "array": [row.step_ms.high - row.step_ms.mid for row in rows],
        "arrayminus": [row.step_ms.mid - row.step_ms.low for row in rows],
        "color": colours["idle-5"],
    }
    if not any(row.memory_bytes for row in rows):
        names = [str(row.place or "now") for row in rows]
        figure.add_bar(x=names, y=_mids(rows), error_y=bands, hovertext=texts, hoverinfo="text")
        figure.update_xaxes(
            title=f"place; memory unknown: {plain(found.memory.reason, 100)}", type="category"
        )
    else:
        figure.add_scatter(
            x=[p.memory_bytes / GIB for p in found.front],
            y=[p.step_ms for p in found.front],
            mode="lines",
            line={"shape": "hv", "color": colours["ink"]},
            name="front",
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[None if row.memory_bytes is None else row.memory_bytes / GIB for row in rows],
            y=_mids(rows),
            mode="markers+text",
            text=[str(row.place or "now") for row in rows],
            textposition="top right",
            hovertext=texts,
            hoverinfo="text",
            error_y=bands,
            marker={"size": 9, "color": [colours["compute" if r.place else "unknown"] for r in rows]},
            name="configurations",
        )
        figure.update_xaxes(title="memory of the fullest GPU, GiB")
    figure.update_yaxes(title="step, ms")
    return figure


def _mids(rows: Sequence[Row]) -> list[float]:
    return [row.step_ms.mid for row in rows]


def _said(row: Row) -> str:
    what = changes_words(row.changes) if row.changes else "unchanged"
    low, mid, high = (significant(ms, 4) for ms in (row.step_ms.low, row.step_ms.mid, row.step_ms.high))
    return f"{plain(what)}<br>{mid} ms ({low} to {high})"


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
