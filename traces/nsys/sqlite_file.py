"""Opening a SQLite file that must not be touched, and reading its columns fast."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sqlite3
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from perfdoc.traces.errors import TraceError
from perfdoc.traces.nsys.arrow_reader import MORE_ROWS, ArrowReader, Gathered, UnreadableError
from perfdoc.traces.nsys.columns import Column, nulls, of_values

_HEADER = b"SQLite format 3\x00"
_PARALLEL_ROWS = 100_000
"""Below this many rows a second reader costs more than it saves."""
_READERS = 2
"""Row-id parts read at once. On two free cores 2 took 1.4 s where 1 took 2.4 s (2 M kernels, 15 columns)."""
_PART_ROWS = 1 << 17
"""Of a part at most: its memory stays in the caches, and serves the next part."""
_MAX_CELL_BYTES = 256 << 20
_MAX_DEFAULT = 100
"""Characters. A column that was added later holds its default in every row, and takes no room in the file."""
_LEAST_ROW_BYTES = 4
"""Of any row in the file. Damaged pages may name one another in circles, and their rows would have no end."""
_STEPS_EACH_BYTE = 64
_FREE_STEPS = 20_000_000
_STEPS_AT_ONCE = 1_000_000
"""SQLite's own steps between two looks at how many a query has taken."""
_ODD_FRAC = 0.1
"""Of a column's values may be of another kind: of more, what the column means is not known."""
_FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises: SQLite's message may quote a schema that is not UTF-8."""
_DECLARED = "SELECT type FROM pragma_table_xinfo(?) WHERE name = ?"
_ROW_IDS = ("rowid", "_rowid_", "oid")
"""SQLite's names of the row id. A column of the same name hides one."""
_COMPANIONS = ("-wal", "-journal")
"""What lies beside a file while SQLite changes it, or after that was cut short."""
_REMEDY_EXPORT = "Export the report again: nsys export --type sqlite REPORT.nsys-rep"


class SqliteFile:
    """A SQLite database opened read-only, its bytes and its folder left as they are.

    It is opened `immutable`, which needs no lock and works on a read-only file system. A non-empty `-wal` or
    `-journal` beside the file holds changes of it that SQLite would have to write: such a file is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers = ThreadPoolExecutor(max_workers=_READERS)
        self._planned: deque[tuple[str, tuple[str, ...]]] = deque()
        self._ahead: dict[tuple[str, tuple[str, ...]], Gathered] = {}
        """The large table that readers are at work on."""
        self._bytes = _check_header(path)
        self._looks = 0
        self.odd_values: dict[str, int] = {}
        """By column, its values of another kind than nearly all of it: damage of single rows."""
        # As bytes, because a name on disk need not be UTF-8.
        uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
        self._arrow = ArrowReader(uri)
        try:
            self.connection = sqlite3.connect(uri, uri=True)
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
            self.connection.set_progress_handler(self._is_endless, _STEPS_AT_ONCE)
            self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self.tables = self._read_tables()
        except _FAULTS as error:
            self.close()
            raise self._damaged(error) from error

    @property
    def most_rows(self) -> int:
        """Of any table, as far as the file has room for them."""
        return self._bytes // _LEAST_ROW_BYTES

    def _is_endless(self) -> bool:
        """Whether the queries so far took more steps than a file of this size is worth, which ends them."""
        self._looks += 1
        return self._looks * _STEPS_AT_ONCE > _FREE_STEPS + _STEPS_EACH_BYTE * self._bytes

    def _why(self, error: Exception) -> str:
        if isinstance(error, UnicodeDecodeError):  # the message, and what in it is the file's
            return _one_line(error.object.decode("utf-8", "replace"))
        return MORE_ROWS if "interrupted" in str(error) else _one_line(str(error))

    def close(self) -> None:
        """Release the file and delete the temporary copy, if one was made."""
        self._readers.shutdown(cancel_futures=True)
        if hasattr(self, "_arrow"):
            self._arrow.close()
        if hasattr(self, "connection"):
            self.connection.close()

    def _read_tables(self) -> dict[str, frozenset[str]]:
        # Without virtual tables, which have no pages and are made by code.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        names = [row[0] for row in self.connection.execute(query)]
        return {name: frozenset(self._columns(name)) for name in names}

    def _columns(self, table: str) -> list[str]:
        """Names of a table's columns. Raises TraceError where rows would hold what the file does not."""
        query = "SELECT name, length(dflt_value), hidden FROM pragma_table_xinfo(?)"
        found = self.connection.execute(query, (table,)).fetchall()
        if any((length or 0) > _MAX_DEFAULT or hidden > 1 for _, length, hidden in found):
            self.close()
            what = f"table {table} has a default or a computed column that no export has."
            raise TraceError(self.path, what, _REMEDY_EXPORT)
        return [name for name, _, hidden in found if not hidden]

    def plan(self, reads: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Say what will be read, and in which order, among other reads.

        The readers begin with each as soon as the one before it was handed over: they work on it while the
        caller works on what it has. What is planned and never read costs time and nothing else.
        """
        self._planned = deque((table, tuple(columns)) for table, columns in reads)

    def read(self, table: str, columns: Sequence[str]) -> dict[str, Column]:
        """Columns of a table, in row-id order.

        `table` and `columns` must be constants of ours, never text from a file.
        Raises TraceError where the content does not fit the declared type or the file is damaged.
        """
        wanted = (table, tuple(columns))
        try:
            begun = self._ahead.pop(wanted) if wanted in self._ahead else self._begin(*wanted)
            found = self._join(*wanted, begun)
        except (UnreadableError, *_FAULTS) as error:
            raise self._unreadable(table, error) from error
        if self._planned and self._planned[0] == wanted:
            self._planned.popleft()
            self._look_ahead()
        return found

    def _look_ahead(self) -> None:
        """Begin with what is planned next, where that takes long enough. Its faults show when it is read."""
        if self._planned and not self._ahead:
            table, columns = self._planned[0]
            with contextlib.suppress(*_FAULTS, TraceError):
                low, high = self._ends(table, self.row_id(table))
                if low is not None and high - low >= _PARALLEL_ROWS:
                    self._ahead[table, columns] = self._begin(table, columns)

    def _begin(self, table: str, columns: tuple[str, ...]) -> Gathered:
        """Have a table read, a large one by the readers."""
        row_id = self.row_id(table)
        low, high = self._ends(table, row_id)
        if low is None:
            return Gathered(0)
        rows = high - low + 1
        found = Gathered(rows)
        parts = 1 if rows <= _PARALLEL_ROWS else _READERS
        if parts > 1 and rows <= self.most_rows:  # else there are holes
            parts = max(parts, -(-rows // _PART_ROWS))
        bounds = [low + rows * i // parts for i in range(parts + 1)]
        placed = parts > 1 and rows * len(columns) <= self._bytes  # a value takes a byte or more; else holes

        def read(a: int, b: int) -> dict[str, Column]:
            query = f"{_select(table, columns)} WHERE {row_id} >= {a} AND {row_id} < {b}"
            part = self._arrow.read(query, min(b - a, self.most_rows))
            return found.place(part, a - low, b - a) if placed else part

        if parts == 1:  # not behind a large table that is being read ahead
            done: Future[dict[str, Column]] = Future()
            try:
                done.set_result(read(*bounds))
            except UnreadableError as error:
                done.set_exception(error)
            found.parts.append(done)
        else:
            found.parts += [self._readers.submit(read, a, b) for a, b in itertools.pairwise(bounds)]
        return found

    def _join(self, table: str, columns: tuple[str, ...], gathered: Gathered) -> dict[str, Column]:
        if not gathered.parts:
            return {name: nulls(0) for name in columns}
        return {
            n: self._of_one_kind(table, n) if c is None or self._is_mixed(table, n, c) else c
            for n, c in gathered.joined().items()
        }

    def _is_mixed(self, table: str, name: str, column: Column) -> bool:
        """Whether single values may be of another kind; of numbers many may be."""
        if column.kind in ("int64", "na"):
            return False
        of = {"string": "text", "double": "real"}.get(column.kind, "blob")
        if not self._holds_other(table, name, of) or len(kinds := self._kinds(table, name)) < 2:
            return False
        return of != "real" or kinds["real"] <= _ODD_FRAC * sum(kinds.values())

    def _holds_other(self, table: str, column: str, kind: str) -> bool:
        """Whether a column holds values of another kind: in a third of the time of `_kinds`, which sorts.

        In a column of texts SQLite keeps numbers as text; beside bytes the driver makes bytes of all."""
        declared = self.connection.execute(_DECLARED, (table, column)).fetchone()
        if kind == "text" and declared == ("TEXT",):
            return False
        query = f'SELECT 1 FROM "{table}" WHERE typeof("{column}") NOT IN (?, \'null\') LIMIT 1'
        return self.connection.execute(query, (kind,)).fetchone() is not None

    def _kinds(self, table: str, column: str) -> dict[str, int]:
        """How many values of each kind a column holds. The driver writes numbers beside text as text, and
        text beside bytes as bytes."""
        query = f'SELECT typeof("{column}"), count(*) FROM "{table}" GROUP BY 1'
        return {str(kind): n for kind, n in self.connection.execute(query) if kind != "null"}

    def _of_one_kind(self, table: str, column: str) -> Column:
        """The values of the kind that nearly all have, NULL for the others, which are counted. Raises
        UnreadableError where no kind is of nearly all."""
        kinds = self._kinds(table, column)
        kind = max(kinds, key=kinds.__getitem__, default="null")
        others = sum(kinds.values()) - kinds.get(kind, 0)
        if others > _ODD_FRAC * sum(kinds.values()):
            raise UnreadableError(f"column {column} holds {' and '.join(sorted(kinds))}")
        self.odd_values[f"{table}.{column}"] = others
        query = f'SELECT CASE typeof("{column}") WHEN ? THEN "{column}" END FROM "{table}"'
        rows = self.connection.execute(f"{query} ORDER BY {self.row_id(table)}", (kind,))
        return of_values([value for (value,) in itertools.islice(rows, self.most_rows)])

    def count(self, table: str) -> int:
        """How many row ids lie between the first and the last of a table of ours. Raises TraceError."""
        try:
            low, high = self._ends(table, self.row_id(table))
        except _FAULTS as error:
            raise self._unreadable(table, error) from error
        return 0 if low is None else high - low + 1

    def _ends(self, table: str, row_id: str) -> tuple[int | None, int]:
        """First and last row id; (None, 0) of an empty table."""
        # One query each: asked for both at once, SQLite walks the whole table.
        low, high = (
            self.connection.execute(f'SELECT {end}({row_id}) FROM "{table}"').fetchone()[0]
            for end in ("min", "max")
        )
        return low, high or 0

    def scan(self, table: str, expressions: str) -> Iterator[tuple[object, ...]]:
        """Rows of a table of ours, one at a time, in row-id order; `expressions` of our own columns.

        Raises TraceError where the file is damaged or has more rows than it can hold.
        """
        query = f'SELECT {expressions} FROM "{table}" ORDER BY {self.row_id(table)}'
        left = min(self.count(table), self.most_rows)
        try:
            for row in self.connection.execute(query):
                if (left := left - 1) < 0:
                    raise UnreadableError(MORE_ROWS)
                yield row
        except (UnreadableError, *_FAULTS) as error:
            raise self._unreadable(table, error) from error

    def _damaged(self, error: Exception) -> TraceError:
        return TraceError(self.path, f"cannot be read as SQLite: {self._why(error)}.", _REMEDY_EXPORT)

    def _unreadable(self, table: str, error: Exception) -> TraceError:
        return TraceError(self.path, f"table {table} cannot be read: {self._why(error)}.", _REMEDY_EXPORT)

    def row_id(self, table: str) -> str:
        """A name of the table's row id that no column of its own hides. Raises TraceError without one."""
        columns = {
            str(name).lower() for (name,) in self.rows("SELECT name FROM pragma_table_xinfo(?)", (table,))
        }
        for name in _ROW_IDS:
            if name not in columns:
                return name
        raise TraceError(self.path, f"table {table} cannot be read: its row ids are hidden.", _REMEDY_EXPORT)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Rows of a small query. Raises TraceError where the file is damaged or has more than it can hold."""
        try:
            # Not by fetchmany, whose count is a C int: a file of 8.6 GB may hold more rows than that.
            found = list(itertools.islice(self.connection.execute(sql, parameters), self.most_rows + 1))
            if len(found) > self.most_rows:
                raise UnreadableError(MORE_ROWS)
        except (UnreadableError, *_FAULTS) as error:
            raise self._damaged(error) from error
        return found


def _select(table: str, columns: Sequence[str]) -> str:
    listed = ", ".join(f'"{c}"' for c in columns)
    return f'SELECT {listed} FROM "{table}"'


def _check_header(path: Path) -> int:
    """Refuse what is not a whole SQLite file at rest before SQLite sees it; how many bytes it has."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.") from error
    if len(header) < 100 or not header.startswith(_HEADER):
        raise TraceError(path, "is not a SQLite file.", _REMEDY_EXPORT)
    for beside in (path.with_name(path.name + suffix) for suffix in _COMPANIONS):
        with contextlib.suppress(OSError):  # not there, or its name would be too long
            if beside.stat().st_size:
                what = f"is not complete: {beside.name} holds changes of it."
                raise TraceError(path, what, "Close the program that writes it, or export the report again.")
    page_bytes = struct.unpack(">H", header[16:18])[0]
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    pages, change_counter, version_valid_for = (
        struct.unpack(">I", header[i : i + 4])[0] for i in (28, 24, 92)
    )
    # SQLite trusts the page count in the header only where these two counters agree (file format, 1.3.7).
    if change_counter == version_valid_for and pages * page_bytes > size:
        raise TraceError(
            path,
            f"is truncated: {size:,} bytes of {pages * page_bytes:,}.",
            "Copy it again, or " + _REMEDY_EXPORT[0].lower() + _REMEDY_EXPORT[1:],
        )
    return size


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".")[:200]
