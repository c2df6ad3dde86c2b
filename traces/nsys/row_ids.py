"""Where parts of a table begin and end, by row ids. Names of tables and columns are ours."""

from __future__ import annotations

import sqlite3

from perfdoc.traces.nsys.arrow_reader import MORE_ROWS, UnreadableError


def next_row_id(connection: sqlite3.Connection, table: str, row_id: str, after: int) -> int | None:
    """The first one after another; None where there is none. Raises UnreadableError."""
    query = f'SELECT {row_id} FROM "{table}" WHERE {row_id} > ? ORDER BY {row_id} LIMIT 1'
    found = connection.execute(query, (after,)).fetchone()
    if found is not None and found[0] <= after:  # pages that name one another again
        raise UnreadableError(MORE_ROWS)
    return None if found is None else int(found[0])


def width_of_rows(
    connection: sqlite3.Connection, table: str, row_id: str, begin: int, end: int, rows: int
) -> int:
    """How many row ids the next rows take, up to the last one. Raises UnreadableError."""
    query = f'SELECT {row_id} FROM "{table}" WHERE {row_id} >= ? ORDER BY {row_id} LIMIT 1 OFFSET ?'
    found = connection.execute(query, (begin, rows)).fetchone()
    if found is None:
        return end - begin + 1
    if not begin < found[0] <= end:
        raise UnreadableError(MORE_ROWS)
    return int(found[0]) - begin
