"""Where the tables of an Nsight export come from: one SQLite file, or what another container offers alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import Format
from perfdoc.traces.nsys.columns import Column, nulls
from perfdoc.traces.nsys.sqlite_file import SqliteFile
from perfdoc.traces.table import I64

NULL = -1
"""What stands for SQL's NULL in an integer column."""
NO_TIME = -(2**63)
"""The same where every other number may be one: it lies before all times."""


class NsysSource(Protocol):
    """Tables of one Nsight export, by Nsight's own names."""

    path: Path
    format: Format
    odd_values: dict[str, int]
    """By `TABLE.column`, how many values of another kind than nearly all of it were taken for NULL so far."""

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a table; empty where the export has no such table."""

    def count(self, table: str) -> int:
        """About how many rows a table has, without reading it; 0 where the export has no such table."""

    def read(self, table: str, columns: Sequence[str]) -> dict[str, Column]:
        """The named columns, which must exist, in the export's row order: numbers, text or bytes.

        Raises TraceError where they cannot be read.
        """

    def plan(self, reads: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Say which columns of large tables will be read first, in order, where they are there: a source may
        read ahead."""

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Texts of StringIds; ids that the table lacks are left out."""

    def blobs(self, table: str, column: str) -> list[tuple[int, bytes]]:
        """Row position and content of every value that is not NULL, as bytes."""

    def holds_text_like(self, table: str, column: str, patterns: Sequence[str]) -> bool:
        """Whether any value of a text column matches one of the SQL LIKE patterns."""

    def close(self) -> None:
        """Release files."""


class SqliteSource(SqliteFile):
    """An export of `nsys export --type sqlite`."""

    format: Format = "nsys-sqlite"

    def columns(self, table: str) -> frozenset[str]:
        """See NsysSource."""
        return self.tables.get(table, frozenset())

    def count(self, table: str) -> int:
        """See NsysSource. By the row ids: rows that were deleted may count."""
        return super().count(table) if table in self.tables else 0

    def plan(self, reads: Iterable[tuple[str, Sequence[str]]]) -> None:
        """See NsysSource."""
        present = [(table, [c for c in wanted if c in self.columns(table)]) for table, wanted in reads]
        super().plan((table, columns) for table, columns in present if columns)

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """See NsysSource. Only the ids asked for are read: the table also holds the user's environment."""
        wanted = sorted(set(ids)) if "StringIds" in self.tables else []  # else all names are missing
        found: dict[int, str] = {}
        for i in range(0, len(wanted), 500):
            chunk = wanted[i : i + 500]
            marks = ",".join("?" * len(chunk))
            for key, value in self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", chunk):
                number = _whole(key)
                if number is not None and value is not None:
                    found[number] = text_of(value)
        return found

    def blobs(self, table: str, column: str) -> list[tuple[int, bytes]]:
        """See NsysSource."""
        if not self.rows(f'SELECT 1 FROM "{table}" WHERE "{column}" IS NOT NULL LIMIT 1'):
            return []
        # CAST, because the connection decodes text and one column may hold both kinds.
        rows = self.scan(table, f'CAST("{column}" AS BLOB)')
        return [(i, value) for i, (value,) in enumerate(rows) if isinstance(value, bytes)]

    def holds_text_like(self, table: str, column: str, patterns: Sequence[str]) -> bool:
        """See NsysSource."""
        condition = " OR ".join([f'"{column}" LIKE ?'] * len(patterns))
        return bool(self.rows(f'SELECT 1 FROM "{table}" WHERE {condition} LIMIT 1', patterns))


def read_ints(source: NsysSource, table: str, defaults: Mapping[str, int]) -> dict[str, I64]:
    """Integer columns of a table as int64 arrays of equal length.

    `defaults` maps each wanted column to what stands for NULL and for a column that this generation of
    the export does not have. A missing table gives empty arrays.
    Raises TraceError where a column does not hold integers.
    """
    present = [c for c in defaults if c in source.columns(table)]
    data = source.read(table, present) if present else {"": nulls(0)}
    return ints_of(source, table, data, defaults)


def ints_of(
    source: NsysSource, table: str, data: dict[str, Column], defaults: Mapping[str, int]
) -> dict[str, I64]:
    """The same of a table that was read."""
    rows = len(next(iter(data.values())))
    found: dict[str, I64] = {}
    for name, default in defaults.items():
        try:
            found[name] = data[name].to_int64(default) if name in data else np.full(rows, default)
        except ValueError as error:
            what = f"column {table}.{name} {error}."
            raise TraceError(source.path, what, "Export the report again.") from error
    return found


def _whole(key: object) -> int | None:
    """A string id as an integer, however SQLite stores it; None where it is none."""
    if isinstance(key, str) and len(key) < 20 and key.isascii() and key.isdigit():
        return int(key)
    if isinstance(key, float) and key.is_integer():
        return int(key)
    return key if isinstance(key, int) else None


def text_of(value: object) -> str:
    """A text as SQLite or Arrow hands it over, bytes among them."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
