"""Damage to the pages of a SQLite file that keeps it a tree, as far as SQLite looks."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

_LEAF, _INTERIOR = 13, 5


def multiply_rows(path: Path, table: str, levels: int, fan: int = 100) -> None:
    """Let every interior page of a table of one page lead to one page below, `fan` times: the rows of that
    page are there `fan ** levels` times, and the file grows by a page a level."""
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    pages, at = len(content) // size, slice((root - 1) * size, root * size)
    leaf = bytes(content[at])
    assert leaf[0] == _LEAF
    content += leaf
    for child in range(pages + 1, pages + levels):
        content += _interior(child, fan, size)
    content[at] = _interior(pages + levels, fan, size)
    content[28:32] = struct.pack(">I", len(content) // size)
    path.write_bytes(content)


def _interior(child: int, fan: int, size: int) -> bytes:
    cells = [struct.pack(">IB", child, min(i + 1, 127)) for i in range(fan)]
    starts = [size - sum(map(len, cells[: i + 1])) for i in range(fan)]
    page = bytearray(size)
    page[:12] = struct.pack(">BHHHBI", _INTERIOR, 0, fan, starts[-1], 0, child)
    for i, (start, cell) in enumerate(zip(starts, cells, strict=True)):
        page[12 + 2 * i : 14 + 2 * i] = struct.pack(">H", start)
        page[start : start + len(cell)] = cell
    return bytes(page)
