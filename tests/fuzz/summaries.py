"""Summaries in place of captures: bytes of the file; under a checksum that fits, bytes and values in it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from perfdoc.diagnose.asked import parse_request
from perfdoc.summaries.writing import summarize
from perfdoc.traces.summary_file import Head, read_sections, write_summary
from tests.fuzz import base
from tests.fuzz.edits import JSON_SPLICES, edit_bytes, edit_tree

_LENGTH = 8
_SPLICES = (*JSON_SPLICES, b'"shape":', b'"steps"', b"4611686018427387904", b"18446744073709551616")


def damaged(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of the file are others."""
    path = folder / "rank0.perfdoc"
    path.write_bytes(edit_bytes(rng, _whole(bases, rng.randrange(2)), rng.choice((1, 1, 3, 20)), _SPLICES))
    return path


def forged(rng: Random, folder: Path, bases: Path) -> Path:
    """Bytes of a section, or values in it, are others, and its checksum is right."""
    head, sections = _parts(bases, rng.randrange(2))
    made = list(sections)
    which = rng.choice((0, 0, 0, 1))
    made[which] = (
        edit_bytes(rng, made[which], rng.choice((1, 2, 5)), _SPLICES)
        if rng.random() < 0.4
        else _other_values(rng, made[which])
    )
    path = folder / "rank0.perfdoc"
    write_summary(path, head, made)
    return path


_COLUMNS_FRAC = 0.4
_EXTREMES = tuple(
    number.to_bytes(8, "little", signed=True)
    for number in (0, 1, -1, 1 << 30, 1 << 31, -(1 << 31), 1 << 61, (1 << 63) - 1, -(1 << 63), 0x7FF0 << 48)
)


def _other_values(rng: Random, section: bytes) -> bytes:
    end = _LENGTH + int.from_bytes(section[:_LENGTH], "little")
    tree: Any = json.loads(section[_LENGTH:end])
    columns = section[end:]
    if columns and rng.random() < _COLUMNS_FRAC:
        columns = _other_numbers(rng, columns)
        text = section[_LENGTH:end]
    else:
        text = json.dumps(edit_tree(rng, tree, rng.choice((1, 1, 2, 4)))).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + columns


def _other_numbers(rng: Random, columns: bytes) -> bytes:
    """Some of the numbers in columns: extremes, and those of other places."""
    found = bytearray(columns)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(0, max(len(found) - 7, 1), rng.choice((1, 4, 8)))
        other = rng.randrange(max(len(found) - 7, 1))
        new = rng.choice((*_EXTREMES, columns[other : other + 8]))
        found[at : at + 8] = new[: len(found) - at]
    return bytes(found)


@cache
def _made(folder: Path, rank: int) -> Path:
    trace = folder / f"summarized{rank}.sqlite"
    trace.write_bytes(base.content(folder, "sqlite", rank, "2026.3"))
    return summarize(trace, parse_request([str(trace)])).path


def _whole(folder: Path, rank: int) -> bytes:
    return _made(folder, rank).read_bytes()


@cache
def _parts(folder: Path, rank: int) -> tuple[Head, tuple[bytes, ...]]:
    head, sections = read_sections(_made(folder, rank), [0, 1])
    return head, tuple(sections)
