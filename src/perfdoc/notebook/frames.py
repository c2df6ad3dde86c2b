"""Tables as pandas DataFrames. pandas is imported when the first one is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfdoc.notebook.errors import PerfdocError
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
        raise PerfdocError("pandas is not installed. pip install 'perfdoc[notebook]'")
