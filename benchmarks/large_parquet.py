"""Reading nsys's own Parquet folder against the SQLite export of the same rows.

    python benchmarks/generate.py --kernels 2000000
    python benchmarks/large_parquet.py make benchmarks/data/nsys-2000000-seed0-v1.sqlite FOLDER
    python benchmarks/large_parquet.py measure FOLDER benchmarks/data/nsys-2000000-seed0-v1.sqlite

`make` lays the rows out as `nsys export --type parquetdir` does: a file a table, ids unsigned, uncompressed,
format 1.0, row groups of a million rows. `measure` has perfdoc read each in a process of its own, in turn,
and prints the least wall and CPU seconds and the largest peak.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_sqlite import dbapi
from process import Run, timed

from tests.captures.nsys_parquet import _TYPES
from tests.captures.nsys_schemas import tables

GENERATION = "2026.3"
GROUP_ROWS = 1_000_000
ROUNDS = 3
_READ = (
    "from pathlib import Path; import sys; from perfdoc.traces.load import read_trace; "
    "t = read_trace(Path(sys.argv[1])); print(len(t.kernels), len(t.ranges))"
)


def make(source: Path, folder: Path) -> None:
    """One Parquet file a table, group by group."""
    folder.mkdir(parents=True)
    uri = f"file:{source.resolve()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    # The driver goes by the first batch for a column's type.
    reader = dbapi.connect(uri).cursor(adbc_stmt_kwargs={"adbc.sqlite.query.batch_rows": str(GROUP_ROWS)})
    for table, columns in tables(GENERATION).items():
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            continue
        last = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] or 0
        schema = pa.schema([(c.name, _TYPES[c.type]) for c in columns])
        listed = ", ".join(f'"{c.name}"' for c in columns)
        with pq.ParquetWriter(
            folder / f"{table}.parquet", schema, version="1.0", compression="none"
        ) as writer:
            for low in range(1, last + 1, GROUP_ROWS):
                query = f'SELECT {listed} FROM "{table}" WHERE rowid >= {low} AND rowid < {low + GROUP_ROWS}'
                writer.write_table(reader.execute(query).fetch_arrow_table().cast(schema))
    reader.close()


def measure(paths: list[Path], rounds: int) -> None:
    """Print a line for each."""
    figures: dict[Path, list[Run]] = {path: [] for path in paths}
    log = Path(f"{paths[0]}.said")
    for _ in range(rounds):
        for path in paths:
            figures[path].append(timed([sys.executable, "-c", _READ, str(path)], printed=log))
    print(log.read_text().strip())
    log.unlink()
    for path, runs in figures.items():
        files = list(path.iterdir()) if path.is_dir() else [path]
        megabytes = sum(f.stat().st_size for f in files) / 1e6
        print(f"{path.name} ({megabytes:,.0f} MB): {Run.best(runs)}")


def main() -> None:
    """Make or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    making = actions.add_parser("make")
    making.add_argument("source", type=Path)
    making.add_argument("folder", type=Path)
    measuring = actions.add_parser("measure")
    measuring.add_argument("paths", type=Path, nargs="+")
    measuring.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.action == "make":
        make(given.source, given.folder)
    else:
        measure(given.paths, given.rounds)


if __name__ == "__main__":
    main()
