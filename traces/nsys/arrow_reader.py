"""Queries of a SQLite file as columns, several at once, by the ADBC driver."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import nanoarrow as na
import numpy as np

from perfdoc.traces.nsys.columns import Column, joined, nulls, of_array
from perfdoc.traces.table import I64

if TYPE_CHECKING:
    import adbc_driver_manager as adbc

MORE_ROWS = "it has more rows than row ids or than a file of its size can hold"


class UnreadableError(Exception):
    """The driver's reason."""


class ArrowReader:
    """Reads in the thread that asks, without the interpreter's lock, on a connection that no other thread has
    meanwhile. Connections stay open until `close`; nothing else does."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._database: Any = None
        self._opening = Lock()
        self._idle: deque[adbc.AdbcConnection] = deque()

    def read(self, query: str, most_rows: int) -> dict[str, Column]:
        """Columns of whole numbers, of fractions, of text or of bytes; of no type where all is NULL. Of a
        column of several kinds the driver makes one: numbers as text, text as bytes.

        most_rows: as many as there can be; one more is read, so that more are seen.
        Raises UnreadableError where the file is damaged or has more rows.
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
                    with na.c_array_stream(handle) as stream:
                        names = [column.name for column in stream.get_schema().children]
                        batches = list(stream)
            finally:
                self._idle.append(connection)
        except (adbc.Error, RuntimeError, OSError) as error:  # the second is nanoarrow's
            raise UnreadableError(str(error)) from error
        if len(batches) > 1 or any(batch.length > most_rows for batch in batches):
            raise UnreadableError(MORE_ROWS)
        columns = map(of_array, batches[0].children) if batches else [nulls(0)] * len(names)
        return {n: c.as_text() if c.kind == "string" else c for n, c in zip(names, columns, strict=True)}

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
        self.parts: list[Future[dict[str, Column]]] = []
        self._rows = rows
        self._whole: dict[str, I64] = {}
        self._placed: Counter[str] = Counter()
        self._changing = Lock()

    def place(self, part: dict[str, Column], first: int, rows: int) -> dict[str, Column]:
        """A part, its whole numbers where they belong, `rows` from the `first` on; as it is if rows lack."""
        for name, column in list(part.items()):
            if column.kind != "int64" or len(column) != rows or not column.is_whole:
                continue
            with self._changing:
                if name not in self._whole:
                    try:
                        self._whole[name] = np.empty(self._rows, np.int64)
                    except MemoryError:  # for rows that may not be there: the parts are joined at the end
                        break
                self._placed[name] += rows
            here = self._whole[name][first : first + rows]
            here[:] = column.values
            part[name] = replace(column, values=here)
        return part

    def joined(self) -> dict[str, Column | None]:
        """All rows; None of a column whose kind differs. Raises what reading a part raised."""
        parts = [part.result() for part in self.parts]
        return {
            name: Column(kind="int64", values=self._whole[name], valid=np.broadcast_to(np.True_, self._rows))
            if self._placed[name] == self._rows
            else joined(of)
            for name, of in zip(parts[0], zip(*(part.values() for part in parts), strict=True), strict=True)
        }
