"""The tables of a diagnosis: for Parquet and CSV files, data frames of a notebook, and an agent."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias, get_args, get_type_hints

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from perfdoc.compare.stored import diagnosis_in, read_diagnosis
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.whole_file import write_all
from perfdoc.records import dataclass
from perfdoc.results import (
    Communication,
    Diagnosis,
    ExposedComm,
    Idle,
    KernelClass,
    Ledger,
    Rank,
    Step,
    TopKernel,
)
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.kernels import PartTime
from perfdoc.results.names import shorten
from perfdoc.results.tables import AllToAllRow, CollectiveSize, CopyRow, MetricMean, Tables

_NAME = 400
_BETWEEN = " > "
"""Between the names of a path."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell of CSV that begins so is run by spreadsheets."""
_Column: TypeAlias = tuple[str, pa.DataType, bool, Callable[[Any], Any]]
"""Name, type, whether it may be null, and the value of a row."""
_TYPES: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def run(paths: Sequence[str], folder: Path, say: Callable[[str], None], *, force: bool = False) -> None:
    """Write the tables of one diagnosis (its file, or a folder that holds it). Raises UserError, OSError."""
    if len(paths) != 1:
        raise UserError("--tables: give one diagnosis.json, or the folder of one report.")
    tables = tables_of(read_diagnosis(diagnosis_in(Path(paths[0])))[0])
    contents = {}
    for name, table in tables.items():
        contents[folder / f"{name}.parquet"] = _parquet(table)
        contents[folder / f"{name}.csv"] = _csv(table)
    if taken := next((path for path in contents if path.exists() and not force), None):
        raise UserError(f"{taken}: is there already. Choose another --tables, or overwrite with --force.")
    write_all(contents, folder)
    rows = ", ".join(f"{name} {table.num_rows:,}" for name, table in tables.items())
    say(f"wrote {shorten(str(folder), 1000)}: rows of {rows}.")


Row: TypeAlias = tuple[str, Any]
"""Label of a rank, empty of what is of all ranks or names its own; and the row."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A table: the type of its rows, and where they are."""

    row: type
    rows: Callable[[Diagnosis], Iterable[Row]]
    by_rank: bool = False
    """Whether a first column says the rank."""
    before: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Further columns of integers, by name."""
    why: Callable[[Diagnosis], str] = lambda _: ""
    """Why it has no rows, as far as the diagnosis says so."""


def _of_rank(rows: Callable[[Rank], Iterable[Any]]) -> Callable[[Diagnosis], Iterable[Row]]:
    return lambda diagnosis: ((rank.label, row) for rank in diagnosis.ranks for row in rows(rank))


def _of_all(rows: Callable[[Diagnosis], Iterable[Any]]) -> Callable[[Diagnosis], Iterable[Row]]:
    return lambda diagnosis: (("", row) for row in rows(diagnosis))


def _of_tables(rows: Callable[[Tables], Iterable[Any]]) -> Callable[[Diagnosis], Iterable[Row]]:
    def found(diagnosis: Diagnosis) -> Iterable[Row]:
        if diagnosis.tables is None:
            raise UserError("the diagnosis is of a version without tables: analyse the captures again.")
        tables = diagnosis.tables
        return (("", row) for row in rows(tables))

    return found


def _why(diagnosis: Diagnosis, analysis: str) -> str:
    return str(getattr(diagnosis.tables, analysis).reason) if diagnosis.tables is not None else ""


_KINDS: Mapping[str, _Kind] = {
    "ledger": _Kind(
        row=Ledger,
        rows=_of_rank(lambda rank: [rank.ledger_ns]),
        by_rank=True,
        before={"window_ns": lambda ledger: ledger.total},
    ),
    "steps": _Kind(row=Step, rows=_of_rank(lambda rank: rank.window.step_list), by_rank=True),
    "kernels": _Kind(row=TopKernel, rows=_of_all(lambda d: d.analyses.kernels.top)),
    "kernel_classes": _Kind(row=KernelClass, rows=_of_all(lambda d: d.analyses.kernels.classes)),
    "model_parts": _Kind(row=PartTime, rows=_of_rank(lambda rank: rank.kernel_parts.parts), by_rank=True),
    "operators": _Kind(
        row=OperatorEfficiency,
        rows=_of_all(lambda d: d.analyses.kernel_efficiency.operators),
        why=lambda d: " ".join([d.analyses.kernel_efficiency.reason, *d.analyses.kernel_efficiency.notes]),
    ),
    "communication": _Kind(row=Communication, rows=_of_rank(lambda rank: rank.communication), by_rank=True),
    "collectives": _Kind(row=CollectiveSize, rows=_of_tables(lambda t: t.collectives)),
    "copies": _Kind(row=CopyRow, rows=_of_tables(lambda t: t.copies)),
    "all_to_all": _Kind(
        row=AllToAllRow, rows=_of_tables(lambda t: t.all_to_all.by_rank), why=lambda d: _why(d, "all_to_all")
    ),
    "gpu_metrics": _Kind(
        row=MetricMean, rows=_of_tables(lambda t: t.gpu_metrics.rows), why=lambda d: _why(d, "gpu_metrics")
    ),
}
TABLES = tuple(_KINDS)
"""Names of all tables."""


def tables_of(diagnosis: Diagnosis) -> dict[str, pa.Table]:
    """Every table by name. Raises as table_of."""
    return {name: table_of(diagnosis, name) for name in TABLES}


def table_of(diagnosis: Diagnosis, name: str) -> pa.Table:
    """One of TABLES; without rows it has its columns all the same. Nested results are columns of their own:
    `own_exposed_comm_dp_ns`. Columns that may be null are the schema's nullable ones.

    Raises UserError where the diagnosis is of a version that has no such table.
    """
    kind = _KINDS[name]
    rows = [*kind.rows(diagnosis)]
    columns = [(pa.field("rank", pa.string(), False), [_text(label) for label, _ in rows])]
    columns = columns if kind.by_rank else []
    for head, of in kind.before.items():
        columns.append((pa.field(head, pa.int64(), False), [of(row) for _, row in rows]))
    for head, type_, nullable, of in _columns(kind.row):
        columns.append((pa.field(head, type_, nullable), [of(row) for _, row in rows]))
    arrays = [pa.array(values, head.type) for head, values in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema([head for head, _ in columns]))


def reason_of(diagnosis: Diagnosis, name: str) -> str:
    """Why one of TABLES has no rows; empty where nothing says so."""
    return _KINDS[name].why(diagnosis).strip()


def _columns(kind: type, path: tuple[str, ...] = ()) -> Iterator[_Column]:
    """Name, type and value of each column of a dataclass; lists of results are tables of their own.

    path: fields that lead to it. Leaves of a ledger get the unit that its own name has.
    """
    hints = get_type_hints(kind)
    unit = "_ns" if kind in (Ledger, ExposedComm, Idle) else ""
    for column in fields(kind):
        hint = hints[column.name]
        nullable = NoneType in get_args(hint)
        if nullable:
            hint = next(h for h in get_args(hint) if h is not NoneType)
        at = (*path, column.name)
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _columns(hint, at)
        elif not any(map(is_dataclass, get_args(hint))):
            type_ = _TYPES.get(hint, pa.string())
            yield "_".join(at) + unit, type_, nullable, partial(_cell, attrgetter(".".join(at)))


def _cell(of: Callable[[Any], Any], row: Any) -> Any:
    value = of(row)
    value = _BETWEEN.join(value) if isinstance(value, list) else value
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    return shorten(value, _NAME)


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _csv(table: pa.Table) -> bytes:
    """Texts that a spreadsheet would run get a quotation mark in front."""
    for at, column in enumerate(table.schema):
        if pa.types.is_string(column.type):
            texts = ["'" + t if t.startswith(_FORMULA) else t for t in table.column(at).to_pylist()]
            table = table.set_column(at, column.name, pa.array(texts, pa.string()))
    out = io.BytesIO()
    pa_csv.write_csv(table, out)
    return out.getvalue()
