"""Writes a timeline as the SQLite file that `nsys export --type sqlite` makes.

write_nsys_sqlite(timeline, Path("x.sqlite"), generation="2024.2", shuffle_seed=7)
"""

from __future__ import annotations

import random
from pathlib import Path

from perfdoc.simulator.captures.nsys import Columns, write_export
from tests.captures.nsys_rows import export_rows
from tests.captures.nsys_schemas import DEFAULT_OPTIONS, ExportOptions, tables
from tests.captures.timeline import Timeline


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
    Errors: ValueError for what the generation cannot hold; TraceError where it is there, unless `force`.
    """
    rows = export_rows(timeline, generation, options)
    if shuffle_seed is not None:
        chance = random.Random(shuffle_seed)
        rows = {table: _shuffled(columns, chance) for table, columns in rows.items()}
    schema = {
        table: [column.sql for column in columns]
        for table, columns in tables(generation).items()
        if empty_tables or table in rows
    }
    return write_export(path, schema, rows, force=force)


def _shuffled(columns: Columns, chance: random.Random) -> Columns:
    if "start" not in columns:
        return columns
    order = list(range(len(columns["start"])))
    chance.shuffle(order)
    return {name: [values[i] for i in order] for name, values in columns.items()}
