"""Writes a timeline as the SQLite file that `nsys export --type sqlite` makes.

    write_nsys_sqlite(timeline, Path("x.sqlite"), generation="2024.2", shuffle_seed=7)

Bulk rows, for benchmarks, go around the timeline: `create_tables` and `write_rows` take whole columns.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.whole_file import whole_file
from perfdoc.simulator.captures.nsys.export import DEFAULT_OPTIONS, ExportOptions
from perfdoc.simulator.captures.nsys.rows import export_rows
from perfdoc.simulator.captures.nsys.schemas import tables
from perfdoc.simulator.captures.timeline import Timeline

_BATCH = 65536
"""Rows turned into Python tuples at a time: bounds memory when columns are arrays."""


def write_nsys_sqlite(
    timeline: Timeline,
    path: Path,
    *,
    generation: str = "2026.3",
    options: ExportOptions = DEFAULT_OPTIONS,
    empty_tables: bool = False,
    shuffle_seed: int | None = 0,
    force: bool = False,
) -> Path:
    """Write the file and return its path.

    generation: a key of nsys_schemas.GENERATIONS.
    empty_tables: also make the tables that have no rows (`nsys export --lazy=false`).
    shuffle_seed: rows are written in an order drawn with it, as exports promise none; None keeps the
        order in which the timeline was laid.
    Errors: ValueError for what the generation cannot hold; CaptureError where it is there, unless `force`.
    """
    rows = export_rows(timeline, generation, options)
    schema = tables(generation)
    with whole_file(Path(path), replace=force) as part:
        connection = sqlite3.connect(part)
        # Nobody sees the file before it is whole, so no table needs to reach the disk before the next one.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        try:
            create_tables(connection, generation, [t for t in schema if empty_tables or t in rows])
            chance = None if shuffle_seed is None else random.Random(shuffle_seed)
            for table, columns in rows.items():
                if chance is not None and "start" in columns:
                    order = list(range(len(columns["start"])))
                    chance.shuffle(order)
                    columns = {name: [values[i] for i in order] for name, values in columns.items()}
                write_rows(connection, table, columns)
            connection.commit()
        finally:
            connection.close()
    return Path(path)


def create_tables(connection: sqlite3.Connection, generation: str, names: Sequence[str]) -> None:
    """Make tables of a generation. ValueError for a table that the generation lacks."""
    schema = tables(generation)
    for name in names:
        if name not in schema:
            raise ValueError(f"generation {generation} has no table {name}")
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(c.sql for c in schema[name])})')


def write_rows(
    connection: sqlite3.Connection,
    table: str,
    columns: Mapping[str, NDArray[Any] | Sequence[Any] | int],
) -> int:
    """Append rows given as columns of equal length; returns how many.

    A value that is not a sequence or array (an int, a string) fills its column. Columns that are not
    named become NULL. Faster without an outer Python loop over rows: 2 M kernels take some seconds.
    Table and column names come from this package's tables, not from data.
    """
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
