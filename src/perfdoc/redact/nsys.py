"""A shareable copy of a Nsight Systems SQLite export: the tables and columns that perfdoc reads.

The copy is a new database: nothing of the old file's pages can be in it. It holds the tables and columns that
perfdoc reads (nsys.yaml), whole numbers as they are and every text made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfdoc.kept import table as read_table
from perfdoc.records import dataclass
from perfdoc.redact.texts import CLEANERS, Fields, Names, clean_blob, known_fields
from perfdoc.results.figures import plural
from perfdoc.traces import TraceError
from perfdoc.traces.nsys.source import SqliteSource, text_of
from perfdoc.traces.nsys.sqlite_file import SqliteFile

COLUMNS = SimpleNamespace(**read_table(Path(__file__).resolve().with_name("nsys.yaml")))
TABLES = tuple(dict.fromkeys((*COLUMNS.numbers, *COLUMNS.texts)))
_THREAD = "globalTid"
_BLOB = ("NVTX_EVENTS", "binaryData")
_MAX_INT = 2**63


_OF_WRITING = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE),
        *(sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE),
    }
)
"""No room on the disk, or no more of it for this user or process."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What went into a copy."""

    rows: int
    left_out: str
    """What of the original is not in the copy at all; in words, empty for nothing."""
    words: int
    """Different words that were replaced."""


def copy_nsys(source: Path, target: Path, names: Names) -> Copied:
    """Write the copy of an export to a file that is not there yet. Raises TraceError, sqlite3.Error."""
    export = SqliteSource(source)
    try:
        connection = sqlite3.connect(target)
        try:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            with connection:
                rows = sum(_copy_table(export, connection, table, names) for table in TABLES)
                rows += _copy_strings(export, connection, names)
        finally:
            connection.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", None) in _OF_WRITING:  # which is no fault of the original
            raise
        raise TraceError(source, f"cannot be copied: {error}.", "Export the report again.") from error
    finally:
        export.close()
    left_out = len(export.tables.keys() - {*TABLES, "StringIds"})
    return Copied(rows=rows, left_out=plural(left_out, "table") if left_out else "", words=names.replaced)


def _present(file: SqliteFile, table: str, columns: Sequence[str]) -> list[str]:
    """Those of our own names that the export has."""
    there = file.tables.get(table, frozenset())
    return [c for c in columns if c in there]


def _copy_table(export: SqliteSource, connection: sqlite3.Connection, table: str, names: Names) -> int:
    """One table, in its order. Names of tables and columns are constants of ours."""
    numbers = _present(export, table, COLUMNS.numbers.get(table, ()))
    texts = _present(export, table, COLUMNS.texts.get(table, ()))
    if not numbers and not texts:
        return 0
    columns = [*numbers, *texts]
    declared = ", ".join([*(f'"{c}" INTEGER' for c in numbers), *(f'"{c}" TEXT' for c in texts)])
    connection.execute(f'CREATE TABLE "{table}" ({declared})')
    listed = ", ".join(f'"{c}"' for c in columns)
    fields = known_fields(export) if _BLOB[1] in texts else {}
    rows = export.scan(table, _decoded(columns))
    clean: Iterable[list[object]] = _clean_rows(rows, table, len(numbers), texts, names, fields)
    if table in COLUMNS.of_threads and _THREAD in columns:
        active, at = _referred(export, COLUMNS.active), columns.index(_THREAD)
        clean = (row for row in clean if row[at] in active)
    cursor = connection.executemany(
        f'INSERT INTO "{table}" ({listed}) VALUES ({", ".join("?" * len(columns))})', clean
    )
    return max(cursor.rowcount, 0)


def _decoded(columns: Sequence[str]) -> str:
    """Blobs as bytes, whatever SQLite stored them as; all else as it is."""
    return ", ".join(f'CAST("{c}" AS BLOB)' if c == _BLOB[1] else f'"{c}"' for c in columns)


def _clean_rows(
    rows: Iterable[tuple[Any, ...]],
    table: str,
    numbers: int,
    texts: Sequence[str],
    names: Names,
    fields: Fields,
) -> Iterator[list[object]]:
    for row in rows:
        clean: list[object] = [v if type(v) is int or v is None else _number(v) for v in row[:numbers]]
        if texts:
            plain = {c: text_of(v) for c, v in zip(texts, row[numbers:], strict=True) if v is not None}
            for column, value in zip(texts, row[numbers:], strict=True):
                if value is None:
                    clean.append(None)
                elif (table, column) == _BLOB:
                    clean.append(clean_blob(value, fields))
                else:
                    clean.append(CLEANERS[table, column](names, plain[column], plain))
        yield clean


def _number(value: object) -> int | None:
    """A whole number that was stored as something else; None for what is none."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_INT:
        return int(value)
    if isinstance(value, str) and len(value) < 19 and value.isascii() and value.isdecimal():
        return int(value)
    return None


def _copy_strings(file: SqliteFile, connection: sqlite3.Connection, names: Names) -> int:
    """StringIds: those alone that a copied row refers to, each by the rules of what it names."""
    if not {"id", "value"} <= file.tables.get("StringIds", frozenset()):
        return 0
    kernels, calls = _referred(file, COLUMNS.kernel_names), _referred(file, COLUMNS.call_names)
    # Of the copy, which holds fewer names of threads.
    ranges = {
        n
        for table, columns in COLUMNS.range_names.items()
        for column in _present(file, table, columns)
        for (n,) in connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')
    }
    wanted = kernels | calls | ranges
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")

    def rows() -> Iterator[tuple[int, str]]:
        seen = set()
        for key, value in file.scan("StringIds", "id, value"):
            number = key if type(key) is int else _number(key)
            if number is None or number not in wanted or value is None or number in seen:
                continue
            seen.add(number)
            clean = (
                names.of_kernel if number in kernels else names.of_call if number in calls else names.of_range
            )
            yield number, clean(text_of(value))

    return max(connection.executemany("INSERT INTO StringIds VALUES (?, ?)", rows()).rowcount, 0)


def _referred(file: SqliteFile, references: Mapping[str, Sequence[str]]) -> set[int]:
    """Values of the columns: ids of names, or of threads."""
    found: set[int] = set()
    for table, columns in references.items():
        for column in _present(file, table, columns):
            rows = file.rows(f'SELECT DISTINCT "{column}" FROM "{table}"')
            found |= {n for (v,) in rows if (n := v if type(v) is int else _number(v)) is not None}
    return found
