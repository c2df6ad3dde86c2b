"""Tables as pandas DataFrames, imported with the first one; text of a terminal as HTML of a cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from perfdoc.notebook.errors import PerfdocError
from perfdoc.profiling.installation import install_command
from perfdoc.reports.charts.looks import light_colours
from perfdoc.results.names import NAME_LIMIT, shorten

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A table of the export. Integers stay integers: those that may be unknown are Int64, with <NA>."""
    import pyarrow.types as types

    require_pandas()
    frame = table.to_pandas(integer_object_nulls=True)
    return frame.astype({f.name: "Int64" for f in table.schema if f.nullable and types.is_integer(f.type)})


def frame_of_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Rows of plain values; columns are those of the first row, or these where there is none.

    Whole numbers are Int64, and names one line each.
    """
    require_pandas()
    import pandas as pd

    heads = [*rows[0]] if rows else [*columns]
    found = {}
    for head in heads:
        values = [shorten(v, NAME_LIMIT) if isinstance(v, str) else v for v in (row[head] for row in rows)]
        known = [value for value in values if value is not None]
        whole = bool(known) and all(type(value) is int for value in known)
        found[head] = pd.array(values, dtype="Int64") if whole else pd.Series(values, dtype=None)
    return pd.DataFrame(found, columns=heads)


def require_pandas() -> None:
    """Raises PerfdocError where it is not installed."""
    import importlib.util

    if importlib.util.find_spec("pandas") is None:
        raise PerfdocError(f"pandas is not installed: {install_command('notebook')}")


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
