"""Large tables are read in parts by two readers, the next one while the caller works on the last."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.nsys import arrow_reader, sqlite_file
from perfdoc.traces.nsys.sqlite_file import SqliteFile

ROWS = 200_003


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "x.sqlite"
    with sqlite3.connect(path) as connection:
        for table, factor in (("A", 1), ("B", 7)):
            connection.execute(f"CREATE TABLE {table} (n INTEGER, t TEXT)")
            rows = ((i * factor, "é" if i % 2 else None) for i in range(ROWS))
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        connection.execute("CREATE TABLE Small (n INTEGER)")
        connection.execute("INSERT INTO Small VALUES (5)")
    connection.close()
    return path


@pytest.fixture
def file(large: Path) -> Iterator[SqliteFile]:
    opened = SqliteFile(large)
    yield opened
    opened.close()


def test_what_is_planned_is_read_in_row_order(file: SqliteFile) -> None:
    file.plan([("A", ["n"]), ("B", ["n", "t"]), ("A", ["t"])])
    assert file.read("A", ["n"])["n"].to_list() == list(range(ROWS))
    # The readers have B in hand; what was not planned comes between, planned or not.
    assert file.read("Small", ["n"])["n"].to_list() == [5]
    assert len(file.read("A", ["n"])["n"]) == ROWS
    table = file.read("B", ["n", "t"])
    assert table["n"].to_list() == [7 * i for i in range(ROWS)]
    assert (~table["t"].valid).sum() == (ROWS + 1) // 2
    assert file.read("A", ["t"])["t"].to_list()[:3] == [None, "é", None]


def test_whole_numbers_of_many_parts_are_joined_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 10,000 row ids. `gap` is unknown in one row, and the second table lacks row id 45,000."""
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 10_000)
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        for table in ("Whole", "Hole"):
            connection.execute(f"CREATE TABLE {table} (n INTEGER, gap INTEGER, t TEXT)")
            rows = ((3 * i, None if i == 70_001 else -i, str(i)) for i in range(ROWS))
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
        connection.execute("DELETE FROM Hole WHERE rowid = 45000")  # the row of 44,999, ids being from 1
    connection.close()
    opened = SqliteFile(path)
    try:
        whole, hole = (opened.read(table, ["n", "gap", "t"]) for table in ("Whole", "Hole"))
    finally:
        opened.close()
    assert np.shares_memory(whole["n"].to_int64(-1), whole["n"].to_int64(-1))
    places = [i for i in range(ROWS) if i != 44_999]
    for table, rows in ((whole, list(range(ROWS))), (hole, places)):
        assert table["n"].to_int64(-1).tolist() == [3 * i for i in rows]
        assert table["gap"].to_int64(-1).tolist() == [-1 if i == 70_001 else -i for i in rows]
        assert table["t"].to_list() == [str(i) for i in rows]


def test_no_memory_is_claimed_for_rows_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120,000 row ids in a row, and one far away: 390,000 rows of 8 values would take 3 MB, and the file has
    less. Where it could hold them, as without the far one, memory that is not to be had is not needed."""
    monkeypatch.setattr(sqlite_file, "_PART_ROWS", 10_000)
    names = list("abcdefgh")
    claimed: list[int] = []

    def refuse(rows: int, _: type) -> None:
        claimed.append(rows)
        raise MemoryError

    monkeypatch.setattr(arrow_reader.np, "empty", refuse)
    for far in (390_000, 120_001):
        path = tmp_path / f"{far}.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute(f"CREATE TABLE T ({', '.join(f'{n} INTEGER' for n in names)})")
            query = f"INSERT INTO T (rowid, {', '.join(names)}) VALUES (?{', ?' * 8})"
            connection.executemany(query, ((i, *[i % 2] * 8) for i in (*range(1, 120_001), far)))
        connection.close()
        opened = SqliteFile(path)
        table = opened.read("T", names)
        opened.close()
        assert table["h"].to_list() == [i % 2 for i in (*range(1, 120_001), far)]
        assert bool(claimed) is (far == 120_001)


@pytest.mark.parametrize("size", [4 * (2**31 - 1), 12 << 30])
def test_a_file_that_could_hold_more_rows_than_a_c_int(large: Path, tmp_path: Path, size: int) -> None:
    """Sparse behind its last page. Its size bounds the rows of every table, by four bytes each."""
    path = tmp_path / "sparse.sqlite"
    shutil.copy(large, path)
    os.truncate(path, size)
    opened = SqliteFile(path)
    try:
        assert len(opened.read("A", ["n"])["n"]) == ROWS
        assert opened.rows("SELECT n FROM Small") == [(5,)]
        assert opened.count("B") == ROWS
        assert sum(1 for _ in opened.scan("Small", "n")) == 1
    finally:
        opened.close()


def test_a_damaged_table_is_told_when_it_is_asked_for(large: Path, tmp_path: Path) -> None:
    content = bytearray(large.read_bytes())
    with sqlite3.connect(large) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'B'").fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    # Interior cells of B's root lead nowhere; its right-most child, from which the last row id comes, stays.
    content[(root - 1) * page + 12 : root * page] = b"\xff" * (page - 12)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content)
    damaged = SqliteFile(path)
    damaged.plan([("A", ["n"]), ("B", ["n"])])
    assert len(damaged.read("A", ["n"])["n"]) == ROWS
    with pytest.raises(TraceError, match="table B cannot be read"):
        damaged.read("B", ["n"])
    damaged.close()


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc tells of threads and open files")
def test_a_file_leaves_no_thread_and_nothing_open(large: Path) -> None:
    SqliteFile(large).close()
    threads, files = tasks(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(12):
        opened = SqliteFile(large)
        assert len(opened.read("Small", ["n"])["n"]) == 1
        assert len(opened.read("A", ["n", "t"])["t"]) == ROWS
        opened.close()
    # Libraries start a few of their own when they like.
    assert tasks() < threads + 10
    assert len(list(Path("/proc/self/fd").iterdir())) < files + 10


@pytest.mark.parametrize("apart", [1, 150_000])  # in one part, and in two
@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("a", b"a", "blob and text"),
        (b"a", "a", "blob and text"),
        (5, "a", "integer and text"),
        (0.5, "a", "real and text"),
        (5, b"a", "blob and integer"),
        (5, 0.5, ""),
        (None, "a", ""),
    ],
)
def test_several_kinds_in_one_column(
    tmp_path: Path, first: object, second: object, found: str, apart: int
) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE T (c)")
        connection.executemany("INSERT INTO T (rowid, c) VALUES (?, ?)", [(1, first), (1 + apart, second)])
    connection.close()
    file = SqliteFile(path)
    if found:
        with pytest.raises(TraceError, match=found):
            file.read("T", ["c"])
    else:
        assert file.read("T", ["c"])["c"].to_list() == [first, second]
    file.close()


@pytest.mark.parametrize("apart", [1, 150_000])  # in one part, and in two
@pytest.mark.parametrize(
    ("usual", "odd"), [(2**60 + 1, "a"), (2**60 + 1, 0.5), (2**60 + 1, b"\xff"), ("a", 5), ("a", b"\xff")]
)
def test_single_values_of_another_kind_are_unknown(
    tmp_path: Path, usual: object, odd: object, apart: int
) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE T (c)")
        rows = [(i, usual) for i in range(1, 20)] + [(20 + apart, odd), (21 + apart, None)]
        connection.executemany("INSERT INTO T (rowid, c) VALUES (?, ?)", rows)
    connection.close()
    file = SqliteFile(path)
    assert file.read("T", ["c"])["c"].to_list() == [usual] * 19 + [None, None]
    assert file.odd_values == {"T.c": 1}
    file.close()


def test_a_computed_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE T (n INTEGER, t TEXT AS (hex(zeroblob(2000000))) VIRTUAL)")
        connection.execute("INSERT INTO T (n) VALUES (1)")
    connection.close()
    with pytest.raises(TraceError, match="table T has a default or a computed column"):
        SqliteFile(path)


def test_a_default_that_grows_when_it_is_read_is_refused(tmp_path: Path) -> None:
    # 3,000 rows of 900 kB each, in a file of 0.9 MB.
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE T (n INTEGER)")
        connection.executemany("INSERT INTO T VALUES (?)", [(i,) for i in range(3000)])
        connection.execute(f"ALTER TABLE T ADD COLUMN t TEXT DEFAULT '{'x' * 900_000}'")
    connection.close()
    with pytest.raises(TraceError, match="table T has a default or a computed column"):
        SqliteFile(path)
