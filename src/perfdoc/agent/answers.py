"""Answers: JSON of bounded length, in which no name is more than a string, and rows of tables."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfdoc.notebook.errors import PerfdocError
from perfdoc.reports.llm import LIMIT, QUOTED, inert
from perfdoc.results.names import prose

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


_TEXT = 1200
_DEEPEST = 12


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, every text in it and every key inert."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, str):
        return inert(prose(value, _TEXT), _TEXT)
    if isinstance(value, Mapping):
        return {inert(str(key), 160): plain(held, depth + 1) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(held, depth + 1) for held in value]
    return value if value is None or isinstance(value, bool | int | float) else inert(str(value), _TEXT)


def answer(document: Mapping[str, Any], *lists: str, limit: int = LIMIT) -> str:
    """The document, its texts inert, as JSON of at most `limit` characters.

    lists: keys of lists whose last rows give way, the first-named first; `left_out` counts them.
    ValueError where all of them are empty and it is still too long.
    """
    found = {"note": QUOTED, **plain(document)}
    left_out: dict[str, int] = {}
    while len(text := _written(found, left_out)) > limit:
        name = next((name for name in lists if found.get(name)), None)
        if name is None:
            raise ValueError("the answer is too long: ask for less.")
        over = max(1, len(found[name]) * (len(text) - limit) // (4 * len(text)))
        found[name] = found[name][:-over]
        left_out[name] = left_out.get(name, 0) + over
    return text


def _written(found: Mapping[str, Any], left_out: Mapping[str, int]) -> str:
    whole = {**found, "left_out": left_out} if left_out else found
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
