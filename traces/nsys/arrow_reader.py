"""Queries of a SQLite file as Arrow tables, several at once, by the ADBC driver."""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
