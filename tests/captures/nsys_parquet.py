"""Writes a timeline as the folder of `nsys export --type parquetdir`, as nsys 2024.2.3 makes it.

One <TABLE>.parquet per table that has rows, with the columns of the SQLite export, names as StringIds ids and
not inlined, ids and sizes unsigned, uncompressed, format 1.0. Types of columns that came later than 2024.2
follow from their SQLite types.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from perfdoc.profiling.whole_file import whole_file
from tests.captures.nsys_rows import export_rows
from tests.captures.nsys_schemas import DEFAULT_OPTIONS, ExportOptions, tables
from tests.captures.timeline import Timeline

_TYPES = {
    "": pa.int64(),
    "u": pa.uint64(),
    "i": pa.int32(),
    "b": pa.bool_(),
    "d": pa.float64(),
    "f": pa.float32(),
    "t": pa.string(),
}


def write_nsys_parquet(
    timeline: Timeline,
    directory: Path,
    *,
    generation: str = "2024.2",
    options: ExportOptions = DEFAULT_OPTIONS,
    empty_tables: bool = False,
    force: bool = False,
) -> Path:
    """Write the folder and return its path; arguments and errors as in write_nsys_sqlite.

    ValueError too for binary payloads, whose place in a Parquet export nobody here has seen.
    """
    if options.payloads == "binary":
        raise ValueError("write_nsys_parquet: binary payloads are not supported; use json or none")
    rows = export_rows(timeline, generation, options)
    with whole_file(Path(directory), replace=force) as part:
        part.mkdir()
        for table, columns in tables(generation).items():
            have = rows.get(table, {})
            length = len(next(iter(have.values()), []))
            if not length and not empty_tables:
                continue
            fields = [pa.field(c.name, _TYPES[c.type], nullable=not c.not_null) for c in columns]
            arrays = [pa.array(have.get(f.name, [None] * length), type=f.type) for f in fields]
            content = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
            pq.write_table(content, part / f"{table}.parquet", compression="NONE", version="1.0")
    return Path(directory)
