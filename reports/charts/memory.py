"""Allocated memory over time, as areas of its categories on top of one another."""

from __future__ import annotations

from markupsafe import Markup

from perfdoc.reports.charts.drawn import figure, legend, patterns, short
from perfdoc.reports.charts.looks import look_of
from perfdoc.results.figures import count, duration, size
from perfdoc.results.memory import DeviceMemory

_WIDE, _HIGH = 1000, 180
_KIND = "memory"


def memory_picture(memory: DeviceMemory, label: str) -> Markup | None:
    """The history of one device; None where it has none."""
    series = memory.series
    if series is None or len(series.event) < 2 or not series.category_bytes:
        return None
    # By time where it is known and passes; else by event.
    at = series.time_ns if series.time_ns and series.time_ns[-1] > 0 else [e + 1 for e in series.event]
    length = max(1, at[-1])
    by_time = at is series.time_ns
    most = max(
        1,
        *(sum(parts) for parts in zip(*series.category_bytes.values(), strict=True)),
        *series.reserved_bytes,
    )
    x = [_WIDE * t / length for t in at]
    looks = [look_of(_KIND, name) for name in series.category_bytes]
    base = [0] * len(x)
    paths = Markup("")
    for look, column in zip(looks, series.category_bytes.values(), strict=True):
        top = [a + b for a, b in zip(base, column, strict=True)]
        outline = _line(x, top, most) + "L" + _line(x, base, most, back=True)[1:] + "z"
        paths += Markup('<path fill="url(#{})" d="{}"><title>{}</title></path>').format(
            look.id(_KIND), outline, f"{look.label}: {size(column[series.peak])} at the peak"
        )
        base = top
    if series.reserved_bytes:
        paths += Markup('<path class="frame" d="{}"><title>reserved by PyTorch</title></path>').format(
            _line(x, series.reserved_bytes, most)
        )
    peak = short(x[series.peak])
    paths += Markup('<path class="mark" d="M{} 0V{}"/>').format(peak, _HIGH)
    total = base[series.peak]
    end = duration(length) if by_time else f"{count(length)} events"
    spoken = f"Allocated memory of {label} over {end}; {size(total)} at the peak"
    drawing = Markup(
        '<svg class="plot" height="{high}" role="img" aria-label="{spoken}"><svg viewBox="0 0 {wide} {high}" '
        'width="100%" height="{high}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'
        '<text x="4" y="13">{most}</text></svg>'
        '<svg class="axis" aria-hidden="true"><text x="0" y="13">0</text>'
        '<text x="100%" y="13" text-anchor="end">{end}</text></svg>'
    ).format(high=_HIGH, wide=_WIDE, spoken=spoken, paths=paths, most=size(most), end=end)
    line = "; the line is what PyTorch reserved" if series.reserved_bytes else ""
    return figure(
        f"Allocated memory of {label} over time, by use; dashed: the peak{line}",
        patterns(_KIND, looks),
        drawing,
        legend(_KIND, "memory", looks),
    )


def _line(x: list[float], y: list[int], most: int, *, back: bool = False) -> str:
    """Steps: each value holds until the next moment."""
    points = [(a, _HIGH - _HIGH * b / most) for a, b in zip(x, y, strict=True)]
    drawn = [f"M{short(points[0][0])} {short(points[0][1])}"]
    drawn += [f"H{short(a)}V{short(b)}" for a, b in points[1:]]
    if not back:
        return "".join(drawn)
    last = points[-1]
    drawn = [f"M{short(last[0])} {short(last[1])}"]
    drawn += [f"V{short(b)}H{short(a)}" for a, b in reversed(points[:-1])]
    return "".join(drawn)
