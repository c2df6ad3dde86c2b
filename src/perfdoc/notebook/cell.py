"""Text of a terminal as the output of a notebook's cell."""

from __future__ import annotations

import re

from markupsafe import escape

from perfdoc.reports.charts.looks import light_colours

_STYLED = re.compile(r"\x1b\[([0-9;]*)m([^\x1b]*)\x1b\[0m")
_STYLES = {
    "1": "font-weight:650",
    "34": "color:{compute}",
    "31": "color:{tp}",
    "33": "color:{memcpy}",
    "2": "color:{idle-1}",
    "33;1": "font-weight:650;color:{bad}",
}
"""Escape sequences of `reports/terminal.py`, which alone writes any."""


def cell_of(text: str) -> str:
    """A text with the escape sequences of a coloured screen, as HTML: all of it is escaped, and it has a
    background of its own, so that it can be read in a notebook of either theme."""
    colours = light_colours()
    html, at = "", 0
    for match in _STYLED.finditer(text):
        style = _STYLES.get(match[1], "").format_map(colours)
        html += f'{escape(text[at : match.start()])}<span style="{style}">{escape(match[2])}</span>'
        at = match.end()
    html += str(escape(text[at:]))
    return (
        f'<pre style="background:{colours["card"]};color:{colours["ink"]};border:1px solid {colours["line"]};'
        "border-radius:6px;padding:.8em 1em;margin:0;width:max-content;max-width:100%;box-sizing:border-box;"
        "overflow-x:auto;white-space:pre;font-size:13px;line-height:1.4;"
        f'font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace">{html}</pre>'
    )
