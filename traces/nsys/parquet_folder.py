"""A folder of `nsys export --type parquetdir`: one Parquet file a table, bounded before it is unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfdoc.profiling.errors import one_line
from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.model import Format
from perfdoc.traces.nsys.columns import Column, of_arrow
from perfdoc.traces.nsys.source import NULL, ints_of

_REMEDY_EXPORT = "Export again: nsys export --type parquetdir REPORT.nsys-rep"
_FREE_BYTES = 256 << 20
_EACH_BYTE = 64
"""Bytes of memory that a byte of a file is worth, beside `_FREE_BYTES`. A row of times and ids takes 20 bytes
of a file and 120 of memory; one value for all rows takes next to nothing of a file."""
_VALUE_BYTES = 8


class ParquetSource:
    """A folder written by `nsys export --type parquetdir`: one file a table."""

    format: Format = "nsys-parquet"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.odd_values: dict[str, int] = {}
        self._files = {p.stem: p for p in path.glob("*.parquet")}
        self._rows: dict[str, int] = {}
        self._columns: dict[str, frozenset[str]] = {}
        self._texts: dict[str, frozenset[str]] = {}
        for name, file in self._files.items():
            require_regular(file)
            try:
                metadata = pq.read_metadata(file)
                schema = metadata.schema.to_arrow_schema()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise _unreadable(file, error) from error
            self._rows[name] = metadata.num_rows
            self._columns[name] = frozenset(schema.names)
            self._texts[name] = frozenset(field.name for field in schema if _holds_texts(field.type))

    def columns(self, table: str) -> frozenset[str]:
        """See NsysSource."""
        return self._columns.get(table, frozenset())

    def count(self, table: str) -> int:
        """See NsysSource."""
        return self._rows.get(table, 0)

    def read(self, table: str, columns: Sequence[str]) -> dict[str, Column]:
        """See NsysSource."""
        data = self._read(table, columns)
        return {name: self._plain(table, name, data) for name in columns}

    def plan(self, reads: Sequence[tuple[str, Sequence[str]]]) -> None:
        """See NsysSource. Parquet is read with all cores as it is."""

    def _read(self, table: str, columns: Sequence[str]) -> pa.Table:
        """Text in dictionaries, where a text that many rows share is there once. Raises TraceError where it
        would take more memory than a file of its size is worth."""
        file = self._files[table]
        room = _FREE_BYTES + _EACH_BYTE * file.stat().st_size
        shared = [c for c in columns if c in self._texts[table]]
        try:
            with pq.ParquetFile(file, read_dictionary=shared) as opened:
                known = _unpacked_bytes(opened.metadata, columns)
                if known <= room:
                    known, found = _read_within(opened, columns, room)
            spelt_out = sum(map(_spelt_out_bytes, found.columns)) if known <= room else 0
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(file, error) from error
        if known > room:
            raise TraceError(file, "unpacks to more than a file of its size can hold.", _REMEDY_EXPORT)
        if spelt_out > room:
            raise TraceError(file, "repeats its texts too often for its size.", _REMEDY_EXPORT)
        return found

    def _plain(self, table: str, name: str, data: pa.Table) -> Column:
        """Numbers or text: dictionaries are expanded, bytes decoded as they are on reading SQLite."""
        types = pa.types
        try:
            if data.schema.names.count(name) != 1:
                raise ValueError("is there twice")
            kind = (values := _expanded(data[name])).type
            if _holds_texts(kind):
                return of_arrow(values.chunks).as_text()
            if any(of(kind) for of in (types.is_null, types.is_integer, types.is_floating, types.is_boolean)):
                return of_arrow(values.chunks)
            raise ValueError(f"holds {kind}, not numbers or text")
        except (pa.ArrowException, ValueError) as error:
            what = f"column {name} {_one_line(error)}."
            raise TraceError(self._files[table], what, _REMEDY_EXPORT) from error

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """See NsysSource."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        table = self.read("StringIds", ["id", "value"])
        keys, values = ints_of(self, "StringIds", table, {"id": NULL})["id"], table["value"]
        rows = np.flatnonzero(np.isin(keys, np.fromiter(ids, np.int64)) & values.valid)
        return dict(zip(keys[rows].tolist(), map(str, values.at(rows)), strict=True))

    def blobs(self, table: str, column: str) -> list[tuple[int, bytes]]:
        """See NsysSource. Cells that are neither text nor bytes are left out."""
        values = _expanded(self._read(table, [column]).column(0))
        if pa.types.is_list(values.type) and pa.types.is_uint8(values.type.value_type):
            return [
                (row, bytes(cell)) for row, cell in enumerate(values.to_pylist()) if cell and None not in cell
            ]
        if not (_holds_texts(values.type) or pa.types.is_fixed_size_binary(values.type)):
            return []
        cells = of_arrow(values.cast(pa.large_binary()).chunks)
        rows = np.flatnonzero(cells.valid)
        return list(zip(rows.tolist(), cells.at(rows), strict=True))

    def holds_text_like(self, table: str, column: str, patterns: Sequence[str]) -> bool:
        """See NsysSource."""
        values = _expanded(self._read(table, [column]).column(0))
        return _holds_texts(values.type) and any(
            pc.any(pc.match_like(values, p, ignore_case=True)).as_py() for p in patterns
        )

    def close(self) -> None:
        """See NsysSource."""


def _expanded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _read_within(opened: Any, columns: Sequence[str], room: int) -> tuple[int, pa.Table]:
    """Columns and what they take, row group by row group until that is more than there is room for: a file
    may unpack to more than it says."""
    taken, groups = 0, [opened.schema_arrow.empty_table()]
    for group in range(opened.num_row_groups):
        groups.append(opened.read_row_group(group, columns=list(columns)))
        taken += groups[-1].nbytes
        if taken > room:
            break
    return taken, pa.concat_tables(groups[1:] or groups)


def _unpacked_bytes(metadata: Any, columns: Sequence[str]) -> int:
    """Of the named columns, by what the file says of itself before anything is unpacked."""
    total = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group)
        for at in range(rows.num_columns):
            column = rows.column(at)
            if column.path_in_schema.split(".")[0] in columns:
                values = max(column.num_values, rows.num_rows)
                total += max(values * _VALUE_BYTES, column.total_uncompressed_size)
    return max(total, int(metadata.num_rows) * _VALUE_BYTES * len(columns))


def _holds_texts(kind: pa.DataType) -> bool:
    types = pa.types
    of = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in of)


def _spelt_out_bytes(column: pa.ChunkedArray) -> int:
    """Of a column of texts, each at every row that has it; 0 of any other.

    Raises ValueError for a row whose text is not among them, which Arrow would look up all the same.
    """
    if not pa.types.is_dictionary(column.type):
        return 0
    total = 0
    for chunk in column.chunks:
        codes = of_arrow([chunk.indices.drop_null()]).to_int64(-1)
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(chunk.dictionary):
            raise ValueError("a row names a value that is not in its dictionary")
        if _holds_texts(column.type.value_type):
            lengths = of_arrow([pc.binary_length(chunk.dictionary)]).to_int64(0)
            # As fractions: a sum of hostile lengths need not fit an integer.
            total += int(lengths[codes].sum(dtype=np.float64))
    return total


def _unreadable(file: Path, error: Exception) -> TraceError:
    return TraceError(file, f"cannot be read as Parquet: {_one_line(error)}.", _REMEDY_EXPORT)


def _one_line(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return one_line(error)
    return " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
