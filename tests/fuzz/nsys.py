"""Nsight exports: rows, schemas and bytes of SQLite files, tables and bytes of Parquet folders."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from tests.captures.nsys_parquet import write_nsys_parquet
from tests.captures.nsys_schemas import GENERATIONS
from tests.fuzz import base
from tests.fuzz.edits import FRACTIONS, NUMBERS, TEXTS, edit_bytes, other
from tests.traces.pages import multiply_rows

_TABLES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds") * 3,
    *("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
    *("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "ThreadNames"),
    *("META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_SESSION_START_TIME", "SCHED_EVENTS", "OSRT_API"),
    *("PROCESSES", "GPU_METRICS", "DIAGNOSTIC_EVENT", "NVTX_PAYLOAD_SCHEMAS"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)


def _file(rng: Random, folder: Path, bases: Path, rank: int = 0) -> Path:
    generation = rng.choice(("2026.3", *GENERATIONS))
    path = folder / f"rank{rank}.sqlite"
    path.write_bytes(base.content(bases, "sqlite", rank, generation))
    return path


_NO_EDIT = (sqlite3.Error, UnicodeError, OverflowError, IndexError)
"""What an edit ends with that the file's schema, or an edit before it, does not let happen."""


def rows(rng: Random, folder: Path, bases: Path, rank: int = 0) -> Path:
    """Values of some rows are others; rows come, go and change places."""
    path = _file(rng, folder, bases, rank)
    # A file may be too damaged for its last change to be kept.
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection, connection:
        _loosen(connection, rng)
        for _ in range(rng.randrange(1, 6)):
            with suppress(*_NO_EDIT):
                _edit_row(connection, rng)
    return path


def real(rng: Random, folder: Path, bases: Path) -> Path:
    """Rows and columns of an export that nsys wrote, where the real traces are here."""
    small = [
        p for p in sorted((base.SHARED_TRACES / "nsys").glob("*.sqlite")) if p.stat().st_size < 1_000_000
    ]
    if not small:
        return rows(rng, folder, bases)
    path = folder / "rank0.sqlite"
    path.write_bytes(rng.choice(small).read_bytes())
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection, connection:
        for _ in range(rng.randrange(1, 8)):
            with suppress(*_NO_EDIT):
                if rng.random() < 0.8:
                    _edit_row(connection, rng)
                else:
                    _edit_schema(connection, rng, *_pick(connection, rng))
    return path


def _loosen(connection: sqlite3.Connection, rng: Random) -> None:
    """Mostly without constraints on columns: half of all values would not go in."""
    if rng.random() < 0.8:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'"
        )
        connection.execute("PRAGMA writable_schema = RESET")


def _pick(connection: sqlite3.Connection, rng: Random) -> tuple[str, list[str]]:
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    table = rng.choice([t for t in _TABLES if t in there] or sorted(there))
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    return table, columns


def _value(rng: Random, old: object) -> object:
    value = other(rng, old)
    if isinstance(value, (list, dict)):
        return rng.choice((b"\xff\xfe", b"", b"\x00" * 40))
    return value


def _edit_row(connection: sqlite3.Connection, rng: Random) -> None:
    table, columns = _pick(connection, rng)
    column = rng.choice(columns)
    one = f'rowid = (SELECT rowid FROM "{table}" LIMIT 1 OFFSET {rng.randrange(12)})'
    kind = rng.randrange(9)
    if kind < 4:
        old = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE {one}').fetchone()
        where = one if rng.random() < 0.7 else "1"
        connection.execute(
            f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', (_value(rng, old and old[0]),)
        )
    elif kind == 4:
        connection.execute(f'UPDATE "{table}" SET "{column}" = "{rng.choice(columns)}"')
    elif kind == 5:
        connection.execute(f'DELETE FROM "{table}" WHERE {rng.choice((one, "rowid % 2", "1"))}')
    elif kind == 6:
        listed = ", ".join(f'"{c}"' for c in columns if c not in ("id", "eventId"))
        for _ in range(rng.choice((1, 1, 50))):
            connection.execute(f'INSERT INTO "{table}" ({listed}) SELECT {listed} FROM "{table}" WHERE {one}')
    elif kind == 7:
        by = rng.choice((*NUMBERS, 1_000, 100_000))
        connection.execute(f'UPDATE "{table}" SET "{column}" = "{column}" {rng.choice("+-*/%")} ?', (by,))
    else:
        connection.execute(f'UPDATE "{table}" SET rowid = rowid + ? WHERE {one}', (rng.choice(NUMBERS),))


def schema(rng: Random, folder: Path, bases: Path) -> Path:
    """Tables and columns come, go, and are other things than they were."""
    path = _file(rng, folder, bases)
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection, connection:
        for _ in range(rng.randrange(1, 4)):
            with suppress(*_NO_EDIT):
                table, columns = _pick(connection, rng)
                _edit_schema(connection, rng, table, columns)
        if rng.random() < 0.3:
            with suppress(*_NO_EDIT):
                _edit_row(connection, rng)
    return path


def _edit_schema(connection: sqlite3.Connection, rng: Random, table: str, columns: list[str]) -> None:
    column, text = rng.choice(columns), rng.choice(TEXTS).replace('"', '""').replace("\x00", "")
    name = rng.choice((text, "rowid", column.upper(), rng.choice(columns)))
    listed = ", ".join(f'"{c}"' for c in columns)
    kind = rng.choice(("INTEGER", "TEXT", "REAL", "BLOB", "", "NUMERIC", "INTEGER PRIMARY KEY", "INT UNIQUE"))
    declared = ", ".join(f'"{c}" {kind if c == column else ""}' for c in columns)
    page = rng.choice((0, 1, 2, 3, 5, 7, 99_999, -1))
    odd = rng.choice(("NULL", "5", "CAST(x'ff61' AS TEXT)", "sql || 1", "upper(sql)"))
    default = rng.choice(
        ("NULL", "5", "-1", "'x'", "'" + "x" * 90 + "'", "x'ff'", "1.5", "CURRENT_TIMESTAMP")
    )
    edits = (
        (f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{name}"',),
        (f'ALTER TABLE "{table}" DROP COLUMN "{column}"',),
        (f'ALTER TABLE "{table}" RENAME TO "{name}"',),
        (f'DROP TABLE "{table}"',),
        (
            f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
            f'ALTER TABLE "{table}" ADD "{column}" {kind} DEFAULT {default}',
        ),
        (
            f"CREATE TABLE other ({declared})",
            f'INSERT INTO other SELECT {listed} FROM "{table}"',
            f'DROP TABLE "{table}"',
            f'ALTER TABLE other RENAME TO "{table}"',
        ),
        (f'ALTER TABLE "{table}" RENAME TO other', f'CREATE VIEW "{table}" AS SELECT * FROM other'),
        (
            f'DROP TABLE "{table}"',
            f'CREATE TABLE "{table}" (a TEXT PRIMARY KEY, "{column}" INTEGER) WITHOUT ROWID',
        ),
        (f'DROP TABLE "{table}"', f'CREATE VIRTUAL TABLE "{table}" USING rtree(id, "{column}", b)'),
        (f'ALTER TABLE "{table}" ADD c INTEGER AS ("{column}" * 2)',),
        (f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END',),
        (
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET {rng.choice(('name', 'tbl_name', 'sql', 'type'))} = {odd} "
            f"WHERE name = '{table}'",
        ),
        ("PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET rootpage = {page} WHERE name = '{table}'"),
    )
    for statement in rng.choice(edits):
        connection.execute(statement)


def pages(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of the file: its header, its pages, what lies beside it."""
    path = _file(rng, folder, bases)
    kind = rng.randrange(6)
    if kind == 0:
        with suppress(AssertionError, sqlite3.Error, TypeError):  # a table of more pages, or none of the name
            multiply_rows(path, rng.choice(_TABLES), rng.randrange(1, 5), rng.choice((2, 50, 100)))
    elif kind == 1:
        content = path.read_bytes()
        path.write_bytes(
            edit_bytes(rng, content[:100], rng.randrange(1, 3))[:100].ljust(100, b"\0") + content[100:]
        )
    else:
        path.write_bytes(edit_bytes(rng, path.read_bytes(), rng.choice((1, 2, 8, 64))))
    if rng.random() < 0.1:
        beside = path.with_name(path.name + rng.choice(("-wal", "-journal")))
        beside.write_bytes(edit_bytes(rng, path.read_bytes()[:8192], 4))
    return path


@cache
def _tables(bases: Path, generation: str) -> dict[str, pa.Table]:
    folder = write_nsys_parquet(
        base.timeline(0), bases / f"{generation}_pqtdir", generation=generation, force=True
    )
    return {p.stem: pq.read_table(p) for p in sorted(folder.glob("*.parquet"))}


def parquet(rng: Random, folder: Path, bases: Path) -> Path:
    """Columns of other kinds and values, files that are missing, damaged, or another table's."""
    tables = dict(_tables(bases, rng.choice(("2024.2", "2026.3"))))
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([t for t in _TABLES if t in tables] or list(tables))
        tables[name] = _edit_table(rng, tables[name])
    if rng.random() < 0.1:
        one, two = rng.sample(sorted(tables), 2)
        tables[one], tables[two] = tables[two], tables[one]
    target = folder / "rank0_pqtdir"
    target.mkdir()
    for name, table in tables.items():
        path = target / f"{name}.parquet"
        options = rng.choice(({"compression": "zstd"}, {"use_dictionary": False}, {"row_group_size": 3}, {}))
        pq.write_table(table, path, **options)
    if rng.random() < 0.3:
        path = rng.choice(sorted(target.iterdir()))
        path.write_bytes(edit_bytes(rng, path.read_bytes(), rng.choice((1, 3, 20))))
    if rng.random() < 0.1:
        rng.choice(sorted(target.iterdir())).unlink()
    return target


def _edit_table(rng: Random, table: pa.Table) -> pa.Table:
    if not table.num_columns:
        return table
    at = rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    values = column.to_pylist()
    if values:
        for _ in range(rng.choice((1, 1, len(values)))):
            values[rng.randrange(len(values))] = other(rng, values[0])
    kinds = (
        *(pa.int8(), pa.uint8(), pa.uint64(), pa.int32(), pa.float64(), pa.float16(), pa.string()),
        *(pa.bool_(), pa.large_string(), pa.binary(), pa.binary(3), pa.timestamp("ns"), pa.duration("us")),
        *(pa.date32(), pa.decimal128(20, 2), pa.list_(pa.int64()), pa.dictionary(pa.int8(), pa.string())),
        *(pa.null(), pa.list_(pa.uint8()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())),
    )
    with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
        edit = rng.randrange(7)
        if edit == 0:
            return table.remove_column(at)
        if edit == 1:
            return table.rename_columns(
                [rng.choice(TEXTS[1:]) if i == at else c for i, c in enumerate(table.column_names)]
            )
        if edit == 2:
            return table.append_column(name, column)
        if edit == 3:
            return pa.concat_tables([table] * rng.choice((2, 50))).slice(rng.randrange(5))
        if edit == 4:
            return table.set_column(at, name, column.cast(rng.choice(kinds)))
        if edit == 5:
            some = [rng.choice((rng.choice(NUMBERS), None)) for _ in values]
            wrong = rng.choice((values, some, [rng.choice(FRACTIONS) for _ in values]))
            return table.set_column(at, name, pa.array(wrong, column.type))
        kind = rng.choice(kinds)
        texts = [rng.choice(TEXTS) for _ in values]
        return table.set_column(at, name, pa.array(texts, kind if pa.types.is_string(kind) else pa.string()))
    return table
