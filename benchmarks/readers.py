"""Compares ways to read the kernel table of an Nsight SQLite file into columns.

    python benchmarks/readers.py FILE.sqlite

Each way runs in fresh processes, interleaved with the others; a way whose package is not installed says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from scan import COLUMNS, totals_sql

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
LISTED = ", ".join(f'"{c}"' for c in COLUMNS[TABLE])
ROUNDS = 3
_BATCH = 65_536


class MissingError(Exception):
    """This way cannot be tried here, and why."""


def scan_only(path: Path) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    return int(connection.execute(totals_sql(TABLE)).fetchone()[0])


def connectorx_in(parts: int) -> Callable[[Path], int]:
    def read(path: Path) -> int:
        import connectorx
        import pyarrow as pa

        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        last = connection.execute(f'SELECT max(rowid) FROM "{TABLE}"').fetchone()[0]
        queries = [
            f'SELECT {LISTED} FROM "{TABLE}" '
            f"WHERE rowid > {last * i // parts} AND rowid <= {last * (i + 1) // parts}"
            for i in range(parts)
        ]
        # One call a part: in one call for all of them the rows come back in no order.
        with ThreadPoolExecutor(max_workers=parts) as pool:
            read_part = partial(connectorx.read_sql, f"sqlite://{path}", return_type="arrow")
            return int(pa.concat_tables(pool.map(read_part, queries)).num_rows)

    return read


def adbc_in(parts: int) -> Callable[[Path], int]:
    """As perfdoc reads: each part on a connection of its own, in one batch."""

    def read(path: Path) -> int:
        try:
            from perfdoc.traces.nsys.arrow_reader import ArrowReader
        except ImportError as error:
            raise MissingError(str(error)) from error
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        last = connection.execute(f'SELECT max(rowid) FROM "{TABLE}"').fetchone()[0]
        queries = [
            f'SELECT {LISTED} FROM "{TABLE}" '
            f"WHERE rowid > {last * i // parts} AND rowid <= {last * (i + 1) // parts}"
            for i in range(parts)
        ]
        reader = ArrowReader(f"file:{path}?mode=ro&immutable=1")
        with ThreadPoolExecutor(max_workers=2) as pool:
            tables = list(pool.map(partial(reader.read, most_rows=last), queries))
        reader.close()
        return sum(len(table["start"]) for table in tables)

    return read


def python_rows(path: Path) -> int:
    import numpy as np

    cursor = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True).execute(
        f'SELECT {LISTED} FROM "{TABLE}"'
    )
    parts = []
    while rows := cursor.fetchmany(_BATCH):
        # NULL (graphNodeId) has no integer form; -1 is what perfdoc writes for it.
        parts.append(np.array([[-1 if v is None else v for v in row] for row in rows], np.int64))
    return len(np.concatenate(parts))


def duckdb(path: Path) -> int:
    import duckdb

    connection = duckdb.connect()
    try:
        # Never downloaded here: a benchmark must not depend on a network.
        connection.execute("SET autoinstall_known_extensions = false; LOAD sqlite")
    except duckdb.Error as error:
        raise MissingError(
            f"its sqlite extension is not installed ({str(error).splitlines()[0][:80]})"
        ) from error
    connection.execute(f"ATTACH '{path}' AS trace (TYPE sqlite, READ_ONLY)")
    return int(connection.execute(f'SELECT {LISTED} FROM trace."{TABLE}"').fetch_arrow_table().num_rows)


WAYS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "scan (totals only)": ("", scan_only),
    "connectorx, 1 part": ("connectorx", connectorx_in(1)),
    "connectorx, 2 parts": ("connectorx", connectorx_in(2)),
    "connectorx, 4 parts": ("connectorx", connectorx_in(4)),
    "ADBC, 1 part": ("adbc-driver-sqlite", adbc_in(1)),
    "ADBC, 2 parts": ("adbc-driver-sqlite", adbc_in(2)),
    "ADBC, 8 parts, 2 at once": ("adbc-driver-sqlite", adbc_in(8)),
    "sqlite3 and numpy": ("numpy", python_rows),
    "DuckDB": ("duckdb", duckdb),
}
"""Label: the package it needs, and the way."""


def run_one(label: str, path: Path) -> None:
    """In a process of its own: print seconds and peak MB, or why not."""
    begin = time.perf_counter()
    try:
        rows = WAYS[label][1](path)
    except (ImportError, MissingError) as error:
        print(f"skipped: {error}")
        return
    seconds = time.perf_counter() - begin
    to_mb = 1e6 if sys.platform == "darwin" else 1e3
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / to_mb, rows)


def compare(path: Path) -> None:
    figures: dict[str, list[list[float]]] = {label: [] for label in WAYS}
    skipped: dict[str, str] = {}
    for _ in range(ROUNDS):
        for label in figures:
            if label in skipped:
                continue
            command: list[Any] = [sys.executable, __file__, path, "--one", label]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            if output.startswith("skipped"):
                skipped[label] = output
            else:
                figures[label].append([float(x) for x in output.split()])
    print(
        f"ways to read {len(COLUMNS[TABLE])} columns of the kernel table of {path.name}, median of {ROUNDS}"
    )
    for label, runs in figures.items():
        if label in skipped:
            print(f"  {label:<20} {skipped[label]}")
            continue
        package = WAYS[label][0]
        version = f"{package} {importlib.metadata.version(package)}" if package else ""
        seconds, peak, rows = (statistics.median(r[i] for r in runs) for i in range(3))
        print(f"  {label:<20} {seconds:6.2f} s {peak:6.0f} MB {rows:12,.0f} rows  {version}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--one", choices=WAYS, help="run one way and print its figures")
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.path)
    else:
        compare(options.path)


if __name__ == "__main__":
    main()
