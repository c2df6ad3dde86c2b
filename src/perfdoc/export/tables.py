"""The tables of a diagnosis as Parquet and CSV files: a data frame each."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, get_args, get_type_hints

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from perfdoc.compare.stored import DIAGNOSIS, REPORT, read_diagnosis
from perfdoc.export.captures import ExportError
from perfdoc.profiling.whole_file import write_all
from perfdoc.results import Diagnosis
from perfdoc.results.names import shorten
from perfdoc.results.tables import AllToAllRow, CollectiveSize, CopyRow, MetricMean, RangeRow
from perfdoc.traces import TraceError

_NAME = 400
_BETWEEN = " > "
"""Between the names of a path."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell of CSV that begins so is run by spreadsheets."""
_Column: TypeAlias = tuple[str, tuple[pa.DataType, Callable[[Any], Any]]]
_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def run(paths: Sequence[str], folder: Path, say: Callable[[str], None], *, force: bool = False) -> None:
    """Write the tables of one diagnosis (its file, or a folder that holds it). Raises ExportError."""
    if len(paths) != 1:
        raise ExportError("--tables: give one diagnosis.json, or the folder of one report.")
    try:
        tables = tables_of(read_diagnosis(_diagnosis_in(Path(paths[0])))[0])
        contents = {}
        for name, table in tables.items():
            contents[folder / f"{name}.parquet"] = _parquet(table)
            contents[folder / f"{name}.csv"] = _csv(table)
        if taken := next((path for path in contents if path.exists() and not force), None):
            raise ExportError(
                f"{taken}: is there already. Choose another --tables, or overwrite with --force."
            )
        write_all(contents, folder)
    except TraceError as error:
        raise ExportError(str(error)) from error
    except OSError as error:
        raise ExportError(f"{error.filename}: cannot be written: {error.strerror}.") from error
    rows = ", ".join(f"{name} {table.num_rows:,}" for name, table in tables.items())
    say(f"wrote {shorten(str(folder), 1000)}: rows of {rows}.")


def _diagnosis_in(path: Path) -> Path:
    for inside in (path / DIAGNOSIS, path / REPORT):
        if inside.is_file():
            return inside
    return path


def tables_of(diagnosis: Diagnosis) -> dict[str, pa.Table]:
    """Every table by name; one without rows has its columns all the same. Nested results are columns of
    their own: `own_exposed_comm_dp`. Raises ExportError where the diagnosis has no tables."""
    tables = diagnosis.tables
    if tables is None:
        raise ExportError("the diagnosis is of a version without tables: analyse the captures again.")
    return {
        "ranges": _table(RangeRow, tables.ranges.rows),
        "collectives": _table(CollectiveSize, tables.collectives),
        "copies": _table(CopyRow, tables.copies),
        "all_to_all": _table(AllToAllRow, tables.all_to_all.by_rank),
        "gpu_metrics": _table(MetricMean, tables.gpu_metrics.rows),
    }


def _table(kind: type, rows: Sequence[Any]) -> pa.Table:
    columns = dict(_columns(kind))
    return pa.table(
        {name: pa.array([of(row) for row in rows], type_) for name, (type_, of) in columns.items()}
    )


def _columns(kind: type, path: tuple[str, ...] = ()) -> Iterator[_Column]:
    """Name, type and value of each column of a dataclass. path: fields that lead to it."""
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if NoneType in get_args(hint):
            hint = next(h for h in get_args(hint) if h is not NoneType)
        at = (*path, field.name)
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _columns(hint, at)
        else:
            yield "_".join(at), (_TYPES.get(hint, pa.string()), partial(_cell, attrgetter(".".join(at))))


def _cell(of: Callable[[Any], Any], row: Any) -> Any:
    value = of(row)
    value = _BETWEEN.join(value) if isinstance(value, list) else value
    return shorten(value, _NAME) if isinstance(value, str) else value


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _csv(table: pa.Table) -> bytes:
    """Texts that a spreadsheet would run get a quotation mark in front."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = ["'" + t if t.startswith(_FORMULA) else t for t in table.column(at).to_pylist()]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
    out = io.BytesIO()
    pa_csv.write_csv(table, out)
    return out.getvalue()
