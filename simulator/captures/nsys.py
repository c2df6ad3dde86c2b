"""The SQLite file that `nsys export` makes: the tables of Nsight Systems 2026.3, filled by whole columns."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfdoc import kept
from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass

PRODUCT_VERSION, SCHEMA_VERSION = "2026.3.1.157", "3.27.0"
NO_ID = 2**32 - 1
"""What CUPTI writes for "no stream" and "no event"."""
MACHINE = 1 << 48
"""Nsight packs hardware (8 bits), virtual machine (8), pid (24) and tid (24) into one number."""
DEFAULT_STREAM = 7
"""The id that CUPTI gives to a context's null stream."""
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75
CLASS_RUNTIME, CLASS_DRIVER, CLASS_GRAPH_NODE = 0, 1, 77
STREAM_WAITS_FOR_EVENT, DEVICE_WAIT = 2, 4
"""CUPTI's types of a synchronisation."""

_Times = TypeVar("_Times", int, NDArray[np.int64])


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How the clock of one rank's file runs against true time (ns)."""

    session_start_ns: int = 0
    """True time at which the file's time 0 lies."""
    utc_error_ns: int = 0
    """How far the UTC time that the file gives for its time 0 is ahead of the truth."""
    drift_ppb: int = 0
    """Nanoseconds that the clock gains in a true second."""

    def local(self, true_ns: _Times) -> _Times:
        """Time in the file, rounded down; never runs backwards. Of one time or of an array."""
        elapsed = true_ns - self.session_start_ns
        assert np.min(elapsed, initial=0) >= 0, f"{true_ns} lies before the session"
        return elapsed + elapsed * self.drift_ppb // 10**9


Columns: TypeAlias = Mapping[str, NDArray[Any] | Sequence[Any] | int]
"""Columns of equal length; a value that is no sequence or array (an int, a string) fills its column."""


def column_sql(name: str, kind: str, mark: str) -> str:
    """A column's definition in SQLite, which knows only INTEGER, TEXT and REAL."""
    sql = f'"{name}" {({"t": "TEXT", "d": "REAL"}).get(kind, "INTEGER")}'
    return sql + (" NOT NULL" if mark else "") + (" PRIMARY KEY" if mark == "*" else "")


_COLUMN = re.compile(r"(\w+)(?::(\w))?([*!]?)")
TABLES: Mapping[str, Sequence[str]] = {
    table: [column_sql(*match.groups(default="")) for match in _COLUMN.finditer(columns)]
    for table, columns in kept.table(Path(__file__).resolve().with_name("nsys.yaml")).items()
}
"""The tables that are written here: their columns' definitions."""


def global_pid(pid: int) -> int:
    """Nsight's serial form of a process id."""
    return MACHINE | pid << 24


def global_tid(pid: int, tid: int) -> int:
    """Nsight's serial form of a thread id."""
    return global_pid(pid) | tid


class Strings:
    """StringIds under construction."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The id of a string, the same for equal strings."""
        return self._ids.setdefault(text, len(self._ids))

    def columns(self) -> Columns:
        """The table's."""
        return {"id": list(self._ids.values()), "value": list(self._ids)}


def export_meta(product_version: str, schema_version: str) -> Columns:
    """META_DATA_EXPORT; schema_version: empty where it is not known."""
    meta = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": product_version,
        "EXPORT_PRODUCT_DATE": ".".join(product_version.split(".")[:2]),
    }
    if schema_version:
        meta["EXPORT_SCHEMA_VERSION"] = schema_version
        for part, number in zip(("MAJOR", "MINOR", "MICRO"), schema_version.split("."), strict=True):
            meta[f"EXPORT_SCHEMA_VERSION_{part}"] = number
    meta |= {"EXPORT_PLATFORM": "linux-desktop", "EXPORT_ARCH": "x64"}
    return {"name": list(meta), "value": list(meta.values())}


_BATCH = 65536
"""Rows turned into Python tuples at a time: bounds memory when columns are arrays."""


def write_export(
    path: Path, tables: Mapping[str, Sequence[str]], rows: Mapping[str, Columns], *, force: bool = False
) -> Path:
    """Make these tables (definitions of columns) and write their rows; a table that has none stays empty.

    TraceError where the file is there, unless `force`. A column that is not named is NULL.
    """
    with whole_file(Path(path), replace=force) as part:
        connection = sqlite3.connect(part)
        # Nobody sees the file before it is whole, so no table needs to reach the disk before the next one.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        try:
            create_tables(connection, tables)
            for table, columns in rows.items():
                write_rows(connection, table, columns)
            connection.commit()
        finally:
            connection.close()
    return Path(path)


def create_tables(connection: sqlite3.Connection, tables: Mapping[str, Sequence[str]]) -> None:
    """Make tables, each by the definitions of its columns."""
    for name, columns in tables.items():
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')


def write_rows(connection: sqlite3.Connection, table: str, columns: Columns) -> int:
    """Append rows; returns how many. Table and column names come from code, not from data."""
    wide = {
        n: v for n, v in columns.items() if isinstance(v, Sequence | np.ndarray) and not isinstance(v, str)
    }
    lengths = {len(values) for values in wide.values()}
    if len(lengths) != 1:
        raise ValueError(f"write_rows: columns of {table} have lengths {sorted(lengths)}")
    names = ", ".join(f'"{name}"' for name in columns)
    statement = f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(columns))})'
    (length,) = lengths
    for start in range(0, length, _BATCH):
        stop = min(start + _BATCH, length)
        parts = [
            _plain(wide[name][start:stop]) if name in wide else [value] * (stop - start)
            for name, value in columns.items()
        ]
        connection.executemany(statement, zip(*parts, strict=True))
    return length


def _plain(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
