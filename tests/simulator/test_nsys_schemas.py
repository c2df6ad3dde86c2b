"""The column tables against what real exports declare."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from perfdoc.simulator.captures.nsys import TABLES
from tests.captures.nsys_schemas import GENERATIONS, tables

SHARED = Path(__file__).resolve().parents[3] / "shared"
DUMPS = {"2022.4": "schema_2022.4.2.sql", "2023.4": "schema_2023.4.4.sql", "2024.2": "schema_2024.2.3.sql"}
Columns = list[tuple[str, str, bool, bool]]


def declared(connection: sqlite3.Connection, table: str) -> Columns:
    rows = connection.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (table,))
    return [(name, kind, bool(not_null), bool(pk)) for name, kind, not_null, pk in rows]


def ours(generation: str) -> dict[str, Columns]:
    connection = sqlite3.connect(":memory:")
    found = {}
    for table, columns in tables(generation).items():
        connection.execute(f'CREATE TABLE "{table}" ({", ".join(c.sql for c in columns)})')
        found[table] = declared(connection, table)
    connection.close()
    return found


@pytest.mark.parametrize("generation", DUMPS)
def test_columns_equal_a_full_export_of_that_version(generation: str) -> None:
    path = SHARED / "knowledge" / "nsys_schema" / DUMPS[generation]
    if not path.is_file():
        pytest.skip("the schema dumps (../shared/knowledge beside the repository) are not here")
    connection = sqlite3.connect(":memory:")
    statements = re.findall(
        r"^CREATE TABLE .*?^\);", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for statement in statements:
        connection.execute(statement)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert len(names) > 100
    mine = ours(generation)
    assert set(mine) <= names
    assert mine == {table: declared(connection, table) for table in mine}
    connection.close()


def test_columns_equal_real_captures(shared_traces: Path) -> None:
    by_product = {g.product: name for name, g in GENERATIONS.items()}
    seen: dict[str, set[str]] = {}
    for path in sorted((shared_traces / "nsys").glob("*.sqlite")):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        meta = dict(connection.execute("SELECT name, value FROM META_DATA_EXPORT"))
        generation = by_product.get(meta["EXPORT_PRODUCT_VERSION"])
        if generation is not None:
            assert meta["EXPORT_SCHEMA_VERSION"] == GENERATIONS[generation].schema
            mine = ours(generation)
            real = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            for table in real & set(mine):
                assert mine[table] == declared(connection, table), (path.name, table)
            seen.setdefault(generation, set()).update(real & set(mine))
        connection.close()
    for generation in ("2024.6", "2025.1", "2026.2", "2026.3"):
        assert "CUPTI_ACTIVITY_KIND_KERNEL" in seen[generation]
    assert "CUPTI_ACTIVITY_KIND_CUDA_EVENT" in seen["2026.3"]


def test_simulated_captures_have_the_columns_of_2026_3() -> None:
    schema = tables("2026.3")
    for table, columns in TABLES.items():
        assert list(columns) == [c.sql for c in schema[table]], table


def test_an_unknown_generation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'2019'.*2022\.4"):
        tables("2019")
