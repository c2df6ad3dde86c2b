"""A trace's columns in a file: they come back as they were, and what is not as it was written is seen."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.simulator.captures.kineto import write_kineto
from perfdoc.simulator.captures.nsys.files import write_nsys_sqlite
from perfdoc.traces import column_file
from perfdoc.traces.codec import same
from perfdoc.traces.column_file import MAGIC, DamagedError, Head, read_columns, write_columns
from perfdoc.traces.load import find_captures, read_trace
from perfdoc.traces.model import Trace
from perfdoc.traces.table import Table
from tests.simulator.hand_laid import hand_laid_timeline

KEY = "1-a-b.columns"


def written(trace: Trace, file: Path, key: str = KEY) -> Path:
    with file.open("wb") as out:
        write_columns(out, trace, key)
    return file


def read(file: Path, key: str = KEY, path: Path = Path("x.sqlite")) -> Trace:
    with file.open("rb") as content:
        return read_columns(content, key, path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("planted")
    return read_trace(write_nsys_sqlite(hand_laid_timeline()[0], folder / "x.sqlite"))


def test_a_planted_trace_comes_back(trace: Trace, tmp_path: Path) -> None:
    found = read(written(trace, tmp_path / "a"), path=trace.path)
    assert same(trace, found)
    assert len(found.kernels)
    assert not found.kernels.start_ns.flags.writeable


def test_its_path_is_that_of_who_asks(trace: Trace, tmp_path: Path) -> None:
    file = written(trace, tmp_path / "a")
    assert trace.path.name.encode() not in file.read_bytes()
    assert read(file, path=Path("y.sqlite")).path == Path("y.sqlite")


def test_a_torch_trace_comes_back(tmp_path: Path) -> None:
    trace = read_trace(write_kineto(hand_laid_timeline()[0], tmp_path / "x.json", 41000))
    assert same(trace, read(written(trace, tmp_path / "a"), path=trace.path))


@pytest.mark.slow
def test_real_traces_come_back(shared_traces: Path, tmp_path: Path) -> None:
    captures = find_captures([str(shared_traces / "nsys" / "*.sqlite")])
    captures += find_captures([str(shared_traces / "kineto" / "*.json.gz")])
    captures = [c for c in captures if c.name != "no_kernel_table.sqlite"]
    assert len(captures) > 20
    for capture in captures:
        trace = read_trace(capture)
        file = written(trace, tmp_path / "a")
        assert same(trace, read(file, path=capture)), capture
        assert file.stat().st_size < column_file.most_bytes(trace) + (1 << 21)


@given(st.data())
def test_a_flipped_bit_is_seen(trace: Trace, data: st.DataObject) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        file = written(trace, Path(folder) / "a")
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
        with pytest.raises(DamagedError):
            read(file)


def test_every_length_but_its_own_is_seen(trace: Trace, tmp_path: Path) -> None:
    file = written(trace, tmp_path / "a")
    content = file.read_bytes()
    for end in (0, 1, len(MAGIC), len(MAGIC) + 40, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:end])
        with pytest.raises(DamagedError):
            read(file)
    file.write_bytes(content + b"\0")
    with pytest.raises(DamagedError):
        read(file)


def test_the_columns_of_another_trace_are_not_taken(trace: Trace, tmp_path: Path) -> None:
    file = written(trace, tmp_path / "a", key="1-a-other.columns")
    with pytest.raises(DamagedError, match="another trace"):
        read(file)


def _with(trace: Trace, table: str, **columns: Any) -> Trace:
    return replace(trace, **{table: replace(getattr(trace, table), **columns)})


def _impossible(trace: Trace) -> list[Trace]:
    """Each with something that no reader lets through."""
    kernels, api = trace.kernels, trace.api_calls
    return [
        _with(trace, "kernels", name=kernels.name + len(trace.strings)),
        _with(trace, "kernels", device=kernels.device - 2),
        _with(trace, "kernels", end_ns=kernels.start_ns - 1),
        _with(trace, "kernels", start_ns=kernels.start_ns + (1 << 62), end_ns=kernels.end_ns + (1 << 62)),
        _with(trace, "api_calls", thread=api.thread + len(trace.threads)),
        _with(trace, "api_calls", end_ns=api.end_ns + (1 << 62)),
        replace(trace, devices=[*trace.devices] * 5000),
        replace(trace, metric_gpus=[1] * (len(trace.devices) + 1)),
    ]


@pytest.mark.parametrize("index", range(8))
def test_what_no_reader_lets_through_is_refused(index: int, trace: Trace, tmp_path: Path) -> None:
    """Under checksums that fit."""
    impossible = _impossible(trace)
    assert len(impossible) == 8
    file = written(impossible[index], tmp_path / "a")
    with pytest.raises(DamagedError):
        read(file)


def test_columns_of_other_types_and_lengths_are_refused(trace: Trace, tmp_path: Path) -> None:
    file = written(trace, tmp_path / "a")
    content = file.read_bytes()
    length = int.from_bytes(content[-4:], "little")
    at = len(content) - 36 - length
    head = msgspec.json.decode(content[at : at + length], type=Head)

    def refused(changed: Head) -> None:
        text = msgspec.json.encode(changed)
        tail = text + hashlib.sha256(text).digest() + len(text).to_bytes(4, "little")
        file.write_bytes(content[:at] + tail)
        with pytest.raises(DamagedError):
            read(file)

    first, *rest = head.parts
    for change in ({"dtype": "i4"}, {"shape": (1 << 40,)}, {"shape": (1, 1)}, {"shape": (-1,)}, {"width": 1}):
        part = msgspec.structs.replace(first, column=msgspec.structs.replace(first.column, **change))
        refused(msgspec.structs.replace(head, parts=(part, *rest)))
    refused(msgspec.structs.replace(head, parts=tuple(rest)))
    refused(msgspec.structs.replace(head, parts=()))
    refused(msgspec.structs.replace(head, content=head.content + 1))
    assert same(trace, read(written(trace, tmp_path / "a"), path=trace.path))


def test_every_index_is_looked_at(trace: Trace) -> None:
    """All columns of 32 bits are indices, but for the number that a profiler gives a GPU."""
    tables = [t for f in fields(trace) if isinstance(t := getattr(trace, f.name), Table)]
    assert len(tables) > 10
    names = {f.name for table in tables for f in fields(table) if f.type == "I32"}
    assert names - {"gpu"} <= set(column_file._POINT_INTO)
    assert np.int32 == trace.kernels.name.dtype
