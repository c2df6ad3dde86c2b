"""Where the tables of an Nsight export come from: one SQLite file, or a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfdoc.traces.arrow import is_text, plain, to_int64, valid
from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.model import Format
from perfdoc.traces.nsys.sqlite_file import SqliteFile
from perfdoc.traces.table import I64

NULL = -1
"""What stands for SQL's NULL in an integer column."""


_REMEDY_EXPORT = "Export again: nsys export --type parquetdir REPORT.nsys-rep"


class NsysSource(Protocol):
    """Tables of one Nsight export, by Nsight's own names."""

    path: Path
    format: Format

    def columns(self, table: str) -> frozenset[str]:
        """Columns of a table; empty where the export has no such table."""

    def count(self, table: str) -> int:
        """About how many rows a table has, without reading it; 0 where the export has no such table."""

    def read(self, table: str, columns: Sequence[str]) -> pa.Table:
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


class SqliteSource:
    """An export of `nsys export --type sqlite`."""

    format: Format = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = SqliteFile(path)

    def columns(self, table: str) -> frozenset[str]:
        """See NsysSource."""
        return self.file.tables.get(table, frozenset())

    def count(self, table: str) -> int:
        """See NsysSource. By the row ids: rows that were deleted may count."""
        return self.file.count(table) if table in self.file.tables else 0

    def read(self, table: str, columns: Sequence[str]) -> pa.Table:
        """See NsysSource."""
        return self.file.read(table, columns)

    def plan(self, reads: Sequence[tuple[str, Sequence[str]]]) -> None:
        """See NsysSource."""
        present = [(table, [c for c in wanted if c in self.columns(table)]) for table, wanted in reads]
        self.file.plan((table, columns) for table, columns in present if columns)

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """See NsysSource. Only the ids asked for are read: the table also holds the user's environment."""
        wanted = sorted(set(ids))
        found: dict[int, str] = {}
        for i in range(0, len(wanted), 500):
            chunk = wanted[i : i + 500]
            marks = ",".join("?" * len(chunk))
            for key, value in self.file.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", chunk):
                number = _whole(key)
                if number is not None and value is not None:
                    found[number] = text_of(value)
        return found

    def blobs(self, table: str, column: str) -> list[tuple[int, bytes]]:
        """See NsysSource."""
        if not self.file.rows(f'SELECT 1 FROM "{table}" WHERE "{column}" IS NOT NULL LIMIT 1'):
            return []
        # CAST, because the connection decodes text and one column may hold both kinds.
        rows = self.file.rows(
            f'SELECT CAST("{column}" AS BLOB) FROM "{table}" ORDER BY {self.file.row_id(table)}'
        )
        return [(i, value) for i, (value,) in enumerate(rows) if isinstance(value, bytes)]

    def holds_text_like(self, table: str, column: str, patterns: Sequence[str]) -> bool:
        """See NsysSource."""
        condition = " OR ".join([f'"{column}" LIKE ?'] * len(patterns))
        return bool(self.file.rows(f'SELECT 1 FROM "{table}" WHERE {condition} LIMIT 1', patterns))

    def close(self) -> None:
        """See NsysSource."""
        self.file.close()


class ParquetSource:
    """A folder written by `nsys export --type parquetdir`: one file a table."""

    format: Format = "nsys-parquet"

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self._read_table = pq.read_table
        self._files = {p.stem: p for p in path.glob("*.parquet")}
        self._columns: dict[str, frozenset[str]] = {}
        for name, file in self._files.items():
            require_regular(file)
            try:
                names = pq.read_schema(file).names
            except (pa.ArrowException, OSError, ValueError) as error:
                raise _unreadable(file, error) from error
            self._columns[name] = frozenset(names)

    def columns(self, table: str) -> frozenset[str]:
        """See NsysSource."""
        return self._columns.get(table, frozenset())

    def count(self, table: str) -> int:
        """See NsysSource."""
        import pyarrow.parquet as pq

        if table not in self._files:
            return 0
        try:
            rows: int = pq.read_metadata(self._files[table]).num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(self._files[table], error) from error
        return rows

    def read(self, table: str, columns: Sequence[str]) -> pa.Table:
        """See NsysSource."""
        data = self._read(table, columns)
        return pa.table({name: self._plain(table, name, data) for name in columns})

    def plan(self, reads: Sequence[tuple[str, Sequence[str]]]) -> None:
        """See NsysSource. Parquet is read with all cores as it is."""

    def _read(self, table: str, columns: Sequence[str]) -> pa.Table:
        file = self._files[table]
        try:
            return self._read_table(file, columns=list(columns))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(file, error) from error

    def _plain(self, table: str, name: str, data: pa.Table) -> pa.ChunkedArray:
        try:
            if data.schema.names.count(name) != 1:
                raise ValueError("is there twice")
            return plain(data[name])
        except (pa.ArrowException, ValueError) as error:
            raise TraceError(
                self._files[table], f"column {name} {_one_line(error)}.", _REMEDY_EXPORT
            ) from error

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """See NsysSource."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        table = self.read("StringIds", ["id", "value"])
        keys, values = to_ints(self, "StringIds", "id", table, NULL), table["value"]
        rows = np.flatnonzero(np.isin(keys, np.fromiter(ids, np.int64)) & valid(values))
        return {
            key: str(values[row].as_py()) for key, row in zip(keys[rows].tolist(), rows.tolist(), strict=True)
        }

    def blobs(self, table: str, column: str) -> list[tuple[int, bytes]]:
        """See NsysSource. Cells that are neither text nor bytes are left out."""
        values = self._read(table, [column]).column(0)
        if pa.types.is_list(values.type) and pa.types.is_uint8(values.type.value_type):
            return [
                (row, bytes(cell)) for row, cell in enumerate(values.to_pylist()) if cell and None not in cell
            ]
        if is_text(values.type):
            values = pc.cast(values, pa.large_binary())
        cells = ((row, values[row].as_py()) for row in np.flatnonzero(valid(values)).tolist())
        return [(row, cell) for row, cell in cells if isinstance(cell, bytes)]

    def holds_text_like(self, table: str, column: str, patterns: Sequence[str]) -> bool:
        """See NsysSource."""
        values = self.read(table, [column])[column]
        return is_text(values.type) and any(
            pc.any(pc.match_like(values, p, ignore_case=True)).as_py() for p in patterns
        )

    def close(self) -> None:
        """See NsysSource."""


def read_ints(source: NsysSource, table: str, defaults: Mapping[str, int]) -> dict[str, I64]:
    """Integer columns of a table as int64 arrays of equal length.

    `defaults` maps each wanted column to what stands for NULL and for a column that this generation of
    the export does not have. A missing table gives empty arrays.
    Raises TraceError where a column does not hold integers.
    """
    present = [c for c in defaults if c in source.columns(table)]
    if not present:
        return {c: np.empty(0, np.int64) for c in defaults}
    data = source.read(table, present)
    columns: dict[str, I64] = {}
    for name, default in defaults.items():
        if name not in present:
            columns[name] = np.full(data.num_rows, default, np.int64)
        else:
            columns[name] = to_ints(source, table, name, data, default)
    return columns


def to_ints(source: NsysSource, table: str, name: str, data: pa.Table, default: int) -> I64:
    """One column of a table that was read, as int64. Raises TraceError where it does not hold integers."""
    try:
        return to_int64(data[name], default)
    except ValueError as error:
        raise TraceError(
            source.path, f"column {table}.{name} {error}.", "Export the report again."
        ) from error


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


def _unreadable(file: Path, error: Exception) -> TraceError:
    return TraceError(file, f"cannot be read as Parquet: {_one_line(error)}.", _REMEDY_EXPORT)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
