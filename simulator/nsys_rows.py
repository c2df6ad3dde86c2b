"""Rows of an Nsight export of a timeline: table -> column -> values, whatever file they go into."""

from __future__ import annotations

from typing import Any, TypeAlias

from perfdoc.simulator.nsys_common import ExportOptions, Rows, Strings
from perfdoc.simulator.nsys_devices import device_rows
from perfdoc.simulator.nsys_enums import ENUM_ROWS
from perfdoc.simulator.nsys_nvtx import nvtx_rows
from perfdoc.simulator.nsys_schemas import tables
from perfdoc.simulator.nsys_target import target_rows
from perfdoc.simulator.timeline import Timeline

Columns: TypeAlias = dict[str, list[Any]]


def _columns(rows: Rows) -> Columns:
    """Rows with equal keys turned into columns."""
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def export_rows(timeline: Timeline, generation: str, options: ExportOptions) -> dict[str, Columns]:
    """All rows of an export, table by table; a table without rows is absent.

    Columns that a generation lacks are left out; a column that is absent here is NULL in the file.
    ValueError where the timeline holds what the generation cannot.
    """
    schema = tables(generation)
    strings = Strings()
    found: dict[str, Rows] = {
        **device_rows(timeline, generation, strings, options),
        **nvtx_rows(timeline, generation, options, strings),
        **target_rows(timeline, generation, strings),
    }
    found["StringIds"] = [{"id": i, "value": text} for text, i in strings.ids.items()]
    for table, values in ENUM_ROWS.items():
        found[table] = [{"id": i, "name": name, "label": label} for i, name, label in values]
    result: dict[str, Columns] = {}
    for table, rows in found.items():
        if rows and table in schema:
            have = _columns(rows)
            result[table] = {c.name: have[c.name] for c in schema[table] if c.name in have}
    lost = [t for t in ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",) if found.get(t) and t not in schema]
    if lost:
        raise ValueError(f"generation {generation} has no table {lost[0]}")
    return result
