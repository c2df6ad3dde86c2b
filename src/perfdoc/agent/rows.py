"""Rows of a table: chosen, sorted, bounded."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfdoc.notebook.errors import PerfdocError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS = 200
_MOST_CONDITIONS = 8
_CONDITION = re.compile(r"\s*(\w{1,80})\s*(<=|>=|!=|=|<|>|contains)\s*(.{0,200}?)\s*\Z", re.DOTALL)
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "contains": lambda held, asked: str(asked).lower() in str(held).lower(),
}


def chosen(
    table: pa.Table,
    *,
    columns: Sequence[str],
    where: Sequence[str],
    sort_by: str | None,
    descending: bool,
    limit: int,
) -> tuple[list[dict[str, Any]], int]:
    """Rows, and how many there are without the limit.

    columns: all where none is named. where: conditions that all hold, such as `total_ns > 1000` and
    `name contains gemm`. What is unknown fulfils none, and is sorted last. Raises PerfdocError.
    """
    heads = table.column_names
    for name in [*columns, *([sort_by] if sort_by else [])]:
        _known(name, heads)
    if len(where) > _MOST_CONDITIONS:
        raise PerfdocError(f"at most {_MOST_CONDITIONS} conditions.")
    rows = table.to_pylist()
    for test in [_test(text, heads, rows) for text in where]:
        rows = [row for row in rows if test(row)]
    if sort_by:
        known = [row for row in rows if row[sort_by] is not None]
        known.sort(key=lambda row: row[sort_by], reverse=descending)
        rows = [*known, *(row for row in rows if row[sort_by] is None)]
    wanted = [*columns] or heads
    shown = rows[: max(1, min(limit, MOST_ROWS))]
    return [{name: row[name] for name in wanted} for row in shown], len(rows)


def _known(name: str, heads: Sequence[str]) -> None:
    if name not in heads:
        raise PerfdocError(f"there is no column {name[:80]!r}; columns are {', '.join(heads)}.")


def _test(
    text: str, heads: Sequence[str], rows: Sequence[dict[str, Any]]
) -> Callable[[dict[str, Any]], bool]:
    found = _CONDITION.match(text[:400])
    if found is None:
        raise PerfdocError(f"{text[:80]!r}: write COLUMN = VALUE, with =, !=, <, <=, >, >= or contains.")
    name, how, said = found.groups()
    _known(name, heads)
    value: Any = said.strip("'\"")
    held = next((row[name] for row in rows if row[name] is not None), None)
    if how != "contains" and isinstance(held, bool):
        value = str(value).lower() == "true"
    elif how != "contains" and isinstance(held, int | float):
        try:
            value = float(value) if not re.fullmatch(r"-?\d{1,18}", value) else int(value)
        except ValueError as error:
            raise PerfdocError(f"{text[:80]!r}: {name} holds numbers.") from error
    compare = _COMPARED[how]
    return lambda row: row[name] is not None and compare(row[name], value)
