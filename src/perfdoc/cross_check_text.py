"""The cross-check for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.cross_check import CaptureCrossCheck, Comparison, CrossCheck, SourceSummary
from perfdoc.reports.grid import grid
from perfdoc.reports.names import base_name, prose, shorten
from perfdoc.reports.units import plural

_SHOWN = 20
"""Differences of one source that are shown; cross_check.json has more."""
_WIDTH = 110


def render_cross_check(check: CrossCheck) -> str:
    """Per capture one line for each source, then what differs. Ends with a line break."""
    lines = ["", f"Cross-check with {shorten(check.nsys)}, whole captures"]
    for capture in check.captures:
        lines += ["", f"  {base_name(capture.path)}"]
        reasons = {source.cannot_compare for source in capture.sources}
        if len(reasons) == 1 and "" not in reasons:
            lines.append(f"    cannot compare: {prose(reasons.pop(), 300)}")
            continue
        lines += [f"    {_summary(source)}" for source in capture.sources]
        for source in capture.sources:
            lines += _differences(capture, source)
    return "\n".join(lines) + "\n"


def _summary(source: SourceSummary) -> str:
    name = f"{source.source:<24}"
    if source.cannot_compare:
        return f"{name}cannot compare: {prose(source.cannot_compare, 300)}"
    if not source.subjects:
        return f"{name}agree: neither lists any"
    what = f"{source.agree + source.differ:,} figures of {plural(source.subjects, source.subject)}"
    if not source.differ:
        return f"{name}agree: {what}"
    return f"{name}differs: {source.differ:,} of {what}"


def _differences(capture: CaptureCrossCheck, source: SourceSummary) -> Iterator[str]:
    if not source.differ:
        return
    rows = [f for f in capture.figures if f.source == source.source and f.verdict == "differs"]
    yield ""
    head = (source.source, "figure", "Nsight", "perfdoc", "difference")
    table = [
        (_subject(f), f.figure, _number(f.theirs), _number(f.ours), _number(f.difference, sign=True))
        for f in rows[:_SHOWN]
    ]
    yield from (f"    {line}" for line in grid(head, table, align="llrrr", width=_WIDTH))
    if source.differ > len(table):
        yield f"    and {source.differ - len(table):,} more"
    for reason in dict.fromkeys(f.reason for f in rows if f.reason):
        yield f"    {prose(reason, 300)}"


def _subject(figure: Comparison) -> str:
    return shorten(f"{figure.name} ({figure.detail})" if figure.detail else figure.name, 64)


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "—"
    mark = "+" if sign else ""
    return f"{value:{mark},}" if isinstance(value, int) else f"{value:{mark},.1f}"
