"""A format that is not perfdoc's own: its record alone, and every command treats its traces as traces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.traces import Trace, TraceError, formats
from perfdoc.traces.formats import FORMATS, TraceFormat
from perfdoc.traces.load import find_captures
from tests.command import perfdoc
from tests.planted.capture import write_capture

MAGIC = b"toy\n"


def read_toy(path: Path) -> Trace:
    """A toy trace names the SQLite export that it is of."""
    export = Path(path.read_bytes().removeprefix(MAGIC).decode())
    trace = next(one for one in FORMATS if one.name == "nsys-sqlite").read(export)
    return replace(trace, path=path, format="toy")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    record = TraceFormat(
        name="toy",
        tool="the toy profiler",
        files=".toy",
        recognises=lambda path, head: head.startswith(MAGIC),
        stem=lambda path: path.stem if path.suffix == ".toy" else None,
        read=read_toy,
    )
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, record))
    export = write_capture(tmp_path / "made")
    (tmp_path / "traces").mkdir()
    path = tmp_path / "traces" / "rank0.toy"
    path.write_bytes(MAGIC + str(export).encode())
    return path


def test_a_new_format_needs_its_record_alone(toy: Path, tmp_path: Path) -> None:
    whole, again, report = (tmp_path / name for name in ("one.json", "two.json", "report"))
    assert perfdoc("analyze", toy.parent, "--json", whole, "-o", report).returncode == 0
    assert json.loads(whole.read_bytes())["inputs"][0]["format"] == "toy"
    assert perfdoc("summarize", str(toy)).returncode == 0
    assert find_captures([str(toy.parent)]) == [toy], "a trace stands for its summary"
    summary = toy.with_suffix(".perfdoc")
    assert perfdoc("analyze", str(summary), "--json", str(again)).returncode == 0
    one, two = (json.loads(file.read_bytes()) for file in (whole, again))
    assert one["ranks"] == two["ranks"]
    assert perfdoc("diff", whole, again).returncode == 0
    refused = perfdoc("redact", str(toy), "-o", str(tmp_path / "copy.toy"))
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "is a trace of the toy profiler, of which no copy is made" in refused.stderr


def test_traces_of_two_tools_are_not_mixed(toy: Path, tmp_path: Path) -> None:
    export = next((tmp_path / "made").rglob("*.sqlite"))
    with pytest.raises(TraceError, match="cannot be mixed"):
        find_captures([str(toy), str(export)])


def test_a_summary_of_an_unknown_format_is_refused(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert perfdoc("summarize", str(toy)).returncode == 0
    monkeypatch.setattr(formats, "FORMATS", FORMATS)
    refused = perfdoc("analyze", str(toy.with_suffix(".perfdoc")))
    assert refused.returncode == 2
    assert "of a trace that this perfdoc cannot read" in refused.stderr


def test_people_find_what_is_read() -> None:
    """The help of `analyze` is written by hand: it answers before a reader is loaded."""
    said = " ".join(perfdoc("analyze", "--help").stdout.split())
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    for one in FORMATS:
        assert [ending for ending in one.files.split(", ") if ending not in said] == []
        assert f"\n## {one.tool}" in page
