"""Step time against memory: every row and the front, as a picture for the page."""

from __future__ import annotations

from markupsafe import Markup

from perfdoc.reports.charts.drawn import figure, short
from perfdoc.results.figures import significant, size
from perfdoc.tune.result import Tuning

_WIDE, _HIGH, _EDGE = 1000, 240, 16


def front_picture(found: Tuning) -> Markup | None:
    """Memory to the right, time upwards; None where memory is not known."""
    rows = [(r.memory_bytes, r.step_ms.mid, r.place) for r in found.rows if r.memory_bytes]
    front = [(p.memory_bytes, p.step_ms) for p in found.front]
    if len(front) < 2:
        return None
    memory = [m for m, _ in front] + [m for m, _, _ in rows if m]
    times = [t for _, t in front] + [t for _, t, _ in rows]
    left, right, low, high = min(memory), max(memory), min(times), max(times)

    def x(value: float) -> float:
        return _EDGE + (_WIDE - 2 * _EDGE) * (value - left) / ((right - left) or 1)

    def y(value: float) -> float:
        return _HIGH - _EDGE - (_HIGH - 2 * _EDGE) * (value - low) / ((high - low) or 1)

    path = f"M{short(x(front[0][0]))} {short(y(front[0][1]))}"
    path += "".join(f"H{short(x(m))}V{short(y(t))}" for m, t in front[1:])
    marks = Markup("")
    for at, ms, place in rows:
        label = place or "now"
        marks += Markup(
            '<circle class="{}" cx="{}%" cy="{}" r="5"><title>{}: {} ms, {}</title></circle>'
            '<text x="{}%" y="{}" dx="8">{}</text>'
        ).format(
            "u-compute" if place else "u-unknown",
            short(100 * x(at or 0) / _WIDE),
            short(y(ms)),
            label,
            significant(ms, 4),
            size(at),
            short(100 * x(at or 0) / _WIDE),
            short(y(ms) + 4),
            label,
        )
    drawing = Markup(
        '<svg class="plot" height="{high}" role="img" aria-label="{spoken}"><svg viewBox="0 0 {wide} {high}" '
        'width="100%" height="{high}" preserveAspectRatio="none" aria-hidden="true">'
        '<path class="median" d="{path}"/></svg>{marks}<text x="4" y="13">{top} ms</text></svg>'
        '<svg class="axis" aria-hidden="true"><text x="0" y="13">{left}</text>'
        '<text x="100%" y="13" text-anchor="end">{right}</text></svg>'
    ).format(
        high=_HIGH,
        wide=_WIDE,
        spoken=f"Step time against memory of {len(rows)} configurations; the table below has the front",
        path=path,
        marks=marks,
        top=f"{high:,.0f}",
        left=size(left),
        right=size(right),
    )
    return figure("Step time (up) against memory of the fullest GPU (right); line: the front", drawing)
