"""Queries of a SQLite file as Arrow tables, several at once, by the ADBC driver."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from perfdoc.traces.arrow import to_int64
from perfdoc.traces.table import I64

if TYPE_CHECKING:
    import adbc_driver_manager as adbc

MORE_ROWS = "it has more rows than row ids or than a file of its size can hold"


class UnreadableError(Exception):
    """The driver's reason."""


class NotUtf8Error(UnreadableError):
    """A text is in another encoding."""


class ArrowReader:
    """Reads in the thread that asks, without the interpreter's lock, on a connection that no other thread has
    meanwhile. Connections stay open until `close`; nothing else does."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._database: Any = None
        self._opening = Lock()
        self._idle: deque[adbc.AdbcConnection] = deque()

    def read(self, query: str, most_rows: int) -> pa.Table:
        """Columns of whole numbers, of fractions, of text or of bytes; of no type where all is NULL. Of a
        column of several kinds the driver makes one: numbers as text, text as bytes.

        most_rows: as many as there can be; one more is read, so that more are seen.
        Raises UnreadableError where the file is damaged or has more rows, NotUtf8Error.
        """
        import adbc_driver_manager as adbc

        try:
            connection = self._connection()
            try:
                with adbc.AdbcStatement(connection) as statement:
                    # The driver goes by the first batch for a column's type, so there is one: a first text
                    # may come late. It claims the memory of a batch at once.
                    statement.set_options(**{"adbc.sqlite.query.batch_rows": str(most_rows + 1)})
                    statement.set_sql_query(f"{query} LIMIT {most_rows + 1}")
                    handle, _ = statement.execute_query()
                    table = pa.RecordBatchReader.from_stream(handle).read_all()
            finally:
                self._idle.append(connection)
        except (adbc.Error, pa.ArrowException, OSError) as error:
            raise UnreadableError(str(error)) from error
        if table.num_rows > most_rows:
            raise UnreadableError(MORE_ROWS)
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise NotUtf8Error(str(error)) from error
        typed = [pa.nulls(len(c)) if c.null_count == len(c) else c for c in table.columns]
        return pa.table(typed, names=table.column_names)

    def _connection(self) -> adbc.AdbcConnection:
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        with contextlib.suppress(IndexError):
            return self._idle.pop()
        with self._opening:
            if self._database is None:
                # Where wheels have it: the package's own search imports zipfile and more.
                driver = Path(adbc_driver_sqlite.__file__).with_name("libadbc_driver_sqlite.so")
                made = partial(adbc.AdbcDatabase, driver=str(driver))
                self._database = (made if driver.is_file() else adbc_driver_sqlite.connect)(uri=self._uri)
        return adbc.AdbcConnection(self._database)

    def close(self) -> None:
        """Close every connection; no other thread may read any more."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._database is not None:
            self._database.close()
            self._database = None


class Gathered:
    """A table that is read in parts, whole numbers put in their places as each part comes: the memory that it
    was read into serves the next one, and its columns need not be joined."""

    def __init__(self, rows: int) -> None:
        self.parts: list[Future[pa.Table]] = []
        self._rows = rows
        self._whole: dict[str, I64] = {}
        self._placed: Counter[str] = Counter()
        self._changing = Lock()

    def place(self, part: pa.Table, first: int, rows: int) -> pa.Table:
        """A part, its whole numbers where they belong, `rows` from the `first` on; as it is if rows lack."""
        for name in part.column_names if part.num_rows == rows else ():
            column = part[name]
            if column.type != pa.int64() or column.null_count:
                continue
            with self._changing:
                if name not in self._whole:
                    try:
                        self._whole[name] = np.empty(self._rows, np.int64)
                    except MemoryError:  # for rows that may not be there: the parts are joined at the end
                        break
                self._placed[name] += rows
            here = self._whole[name][first : first + rows]
            here[:] = to_int64(column, 0)
            part = part.set_column(part.column_names.index(name), name, _array(here))
        return part

    def joined(self) -> pa.Table:
        """All rows. Raises what reading a part raised, and pyarrow's errors where kinds of values differ."""
        table = pa.concat_tables([part.result() for part in self.parts], promote_options="permissive")
        for name, rows in self._placed.items():
            if rows == self._rows:
                table = table.set_column(table.column_names.index(name), name, _array(self._whole[name]))
        return table


def _array(values: I64) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
