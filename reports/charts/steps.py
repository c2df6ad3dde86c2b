"""The length of every analysed step: rank by rank as strips, and over ranks as the range between them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median_low

from markupsafe import Markup

from perfdoc.records import dataclass
from perfdoc.reports.charts.drawn import figure, short
from perfdoc.reports.over_ranks import mean_beside
from perfdoc.reports.summary import drawn_ranks, rank_labels
from perfdoc.results import Diagnosis, Step
from perfdoc.results.figures import apportion, duration, plural
from perfdoc.results.names import shorten
from perfdoc.results.roles import RolesAnalysis

_FEWEST, _MOST = 3, 300
_WIDE, _HIGH = 1000, 120
_GAP = 0.15
"""Of a step's place that is left free."""


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """One step, or several that follow one another, over all ranks."""

    name: str
    low_ns: int
    median_ns: int
    high_ns: int
    slowest: str
    steps: int


def steps_picture(diagnosis: Diagnosis) -> Markup | None:
    """None of one rank (its strip shows the same) and of fewer than three steps."""
    bars = _bars(diagnosis)
    if len(diagnosis.ranks) < 2 or len(bars) < _FEWEST:
        return None
    most = max(1, max(bar.high_ns for bar in bars))
    parts, bodies, line = [], [], []
    for i, bar in enumerate(bars):
        x, wide = _WIDE * (i + _GAP / 2) / len(bars), _WIDE * (1 - _GAP) / len(bars)
        top, low, middle = (_HIGH - _HIGH * ns / most for ns in (bar.high_ns, bar.low_ns, bar.median_ns))
        parts.append(
            Markup(
                '<rect class="u-idle-5" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
            ).format(short(x), short(top), short(wide), short(max(low - top, 0.6)), _said(bar))
        )
        bodies.append(f"M{short(x)} {_HIGH}V{short(low)}h{short(wide)}V{_HIGH}z")
        line.append(f"M{short(x)} {short(middle)}h{short(wide)}")
    parts.insert(0, Markup('<path class="u-compute body" d="{}"/>').format("".join(bodies)))
    parts.append(Markup('<path class="median" d="{}"/>').format("".join(line)))
    spoken = (
        f"Lengths of {plural(len(bars), 'step')} over {plural(len(diagnosis.ranks), 'rank')}: medians from "
        f"{duration(min(b.median_ns for b in bars))} to {duration(max(b.median_ns for b in bars))}"
    )
    drawing = Markup(
        '<svg class="plot" height="{high}" role="img" aria-label="{spoken}"><svg viewBox="0 0 {wide} {high}" '
        'width="100%" height="{high}" preserveAspectRatio="none" aria-hidden="true">{parts}</svg>'
        '<text x="4" y="13">{most}</text></svg>'
        '<svg class="axis" aria-hidden="true"><text x="0" y="13">{first}</text>'
        '<text x="100%" y="13" text-anchor="end">{last}</text></svg>'
    ).format(
        high=_HIGH,
        wide=_WIDE,
        spoken=spoken,
        parts=Markup("").join(parts),
        most=duration(most),
        first=shorten(bars[0].name, 48),
        last=shorten(bars[-1].name, 48),
    )
    pooled = f"; a bar is up to {bars[0].steps:,} steps" if bars[0].steps > 1 else ""
    return figure(f"Every analysed step: fastest to slowest rank; line: median of ranks{pooled}", drawing)


def _said(bar: _Bar) -> str:
    return (
        f"{shorten(bar.name, 64)}: median {duration(bar.median_ns)}, {duration(bar.low_ns)} to "
        f"{duration(bar.high_ns)}, slowest {shorten(bar.slowest, 48)}"
    )


def _bars(diagnosis: Diagnosis) -> list[_Bar]:
    """Steps by name and how often the name has occurred, in the order of the rank that shows most of them."""
    lengths: dict[tuple[str, int], list[tuple[int, str]]] = {}
    ranks = sorted(diagnosis.ranks, key=lambda rank: -len(rank.window.step_list))
    for rank in ranks:
        seen: dict[str, int] = {}
        for step in rank.window.step_list:
            seen[step.name] = seen.get(step.name, 0) + 1
            lengths.setdefault((step.name, seen[step.name]), []).append((step.duration_ns, rank.label))
    rows = list(lengths.items())
    held = max(1, -(-len(rows) // _MOST))
    found = []
    for at in range(0, len(rows), held):
        part = rows[at : at + held]
        each = [[ns for ns, _ in of_step] for _, of_step in part]
        slowest = max((pair for _, of_step in part for pair in of_step), key=lambda pair: pair[0])
        found.append(
            _Bar(
                name=part[0][0][0],
                low_ns=min(map(min, each)),
                median_ns=median_low(median_low(ns) for ns in each),
                high_ns=slowest[0],
                slowest=slowest[1],
                steps=len(part),
            )
        )
    return found


STEP_BARS = 200
"""Of one strip at most."""
ALL_STEP_BARS = 4_000
"""Of all strips together."""
OPEN_STEP_STRIPS = 4


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """One upright bar of a step strip, in per cent of the strip."""

    x: str
    width: str
    y: str
    height: str
    title: str
    ns: int


@dataclass(frozen=True, kw_only=True)
class StepStrip:
    """The steps of one rank."""

    label: str
    bars: list[StepBar]
    summary: str
    merged: int
    """How many steps share a bar, which shows the longest of them; 1 where each has its own."""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}%" if whole > 0 else "0%"


def _strip(label: str, steps: Sequence[Step], tallest_ns: int, most: int) -> StepStrip:
    merged = -(-len(steps) // most)
    longest = [
        max(steps[at : at + merged], key=lambda step: step.duration_ns) for at in range(0, len(steps), merged)
    ]
    widths = apportion([1] * len(longest), 10_000)
    bars = []
    at = 0
    for step, width in zip(longest, widths, strict=True):
        height = max(step.duration_ns, 0)
        bars.append(
            StepBar(
                x=_percent(at, 10_000),
                width=_percent(width, 10_000),
                y=_percent(tallest_ns - height, tallest_ns),
                height=_percent(height, tallest_ns),
                title=f"{shorten(step.name, 64)}: {duration(step.duration_ns)}",
                ns=step.duration_ns,
            )
        )
        at += width
    lengths = [step.duration_ns for step in steps]
    slowest = max(steps, key=lambda step: step.duration_ns)
    low, middle, high = (duration(ns) for ns in (min(lengths), median_low(lengths), max(lengths)))
    if low == high:
        summary = f"{plural(len(steps), 'step')} of {high}"
    else:
        summary = (
            f"{len(steps):,} steps, median {middle}{mean_beside(median_low(lengths), fmean(lengths))}, "
            f"{low} to {high}, longest {shorten(slowest.name, 64)}"
        )
    return StepStrip(label=label, bars=bars, summary=summary, merged=merged)


def step_strips(diagnosis: Diagnosis, roles: RolesAnalysis | None) -> list[StepStrip]:
    """A strip per drawn rank that has steps; all to one height."""
    labels = rank_labels(diagnosis.ranks)
    chosen = [i for i in drawn_ranks(diagnosis.ranks, roles) if diagnosis.ranks[i].window.step_list]
    tallest = max(
        (step.duration_ns for i in chosen for step in diagnosis.ranks[i].window.step_list), default=0
    )
    most = min(STEP_BARS, ALL_STEP_BARS // max(1, len(chosen)))
    return [_strip(labels[i], diagnosis.ranks[i].window.step_list, tallest, most) for i in chosen]
