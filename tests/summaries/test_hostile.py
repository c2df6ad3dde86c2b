"""Summaries that somebody made up, with a checksum that fits: refused, and no other file is read for them."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.diagnose.asked import parse_request
from perfdoc.summaries.codec import decode, encode
from perfdoc.summaries.content import Measured
from perfdoc.summaries.reading import measure_or_explain
from perfdoc.traces import Note, TraceError
from perfdoc.traces.load import find_captures
from perfdoc.traces.summary_file import read_sections, write_summary
from tests.summaries.made import diagnosed, summarized, two_ranks


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    return summarized(two_ranks(folder / "traces")[0], folder / "made")[0].path


def changed(value: Any, way: list[str | int], new: object) -> Any:
    """A copy with another value at the end of a way of fields and indices."""
    if not way:
        return new
    first, *rest = way
    if isinstance(value, dict):
        return {**value, first: changed(value[first], rest, new)}
    if isinstance(first, int):
        return type(value)(changed(v, rest, new) if i == first else v for i, v in enumerate(value))
    return replace(value, **{first: changed(getattr(value, first), rest, new)})


def forged(summary: Path, to: Path, way: list[str | int], new: object) -> Path:
    head, (first, second) = read_sections(summary, [0, 1])
    made = changed(decode(first, Measured), way, new)
    write_summary(to, head, [encode(made), second])
    return to


@pytest.mark.parametrize("way", [["capture", "facts", "run_directory"], ["capture", "path"]], ids=str)
def test_a_path_in_a_summary_is_never_opened(
    summary: Path, tmp_path: Path, way: list[str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("recompute_granularity: full\n")
    path = forged(summary, tmp_path / "rank0.perfdoc", way, secret)
    with pytest.raises(TraceError, match="names a file"):
        diagnosed([path])
    monkeypatch.setattr("perfdoc.summaries.codec.check", lambda _: None)  # nor if it were believed
    request = parse_request([str(path)], jobs=1)
    found = measure_or_explain(path, request)
    assert not isinstance(found, TraceError)
    assert (found.facts.run_directory, found.path) == (None, path)


@pytest.mark.parametrize(
    ("way", "new"),
    [
        (["capture", "ranks", 0, "calls", "utc_origin_ns"], 10**30),
        (["capture", "ranks", 0, "calls", "utc_origin_ns"], -(1 << 61) - 1),
        (["capture", "ranks", 0, "calls", "groups", 0, "size"], 10**30),
        (["capture", "ranks", 0, "timeline", 0, "start_ns"], 10**30),
        (["above", 0, "replay", "error_frac"], 1e308),
    ],
    ids=str,
)
def test_numbers_without_bound(summary: Path, tmp_path: Path, way: list[str | int], new: object) -> None:
    path = forged(summary, tmp_path / "rank0.perfdoc", way, new)
    with pytest.raises(TraceError, match=f"{way[-1]} is out of all bounds"):
        diagnosed([path])


@pytest.mark.parametrize(("steps", "words"), [(-1, "fewer steps"), (1, "other tasks")])
def test_a_replay_is_of_the_steps_of_its_tasks(summary: Path, tmp_path: Path, steps: int, words: str) -> None:
    path = forged(summary, tmp_path / "rank0.perfdoc", ["above", 0, "replay", "steps"], steps)
    with pytest.raises(TraceError, match=words):
        diagnosed([path])


def test_what_packs_into_nothing_is_no_large_allocation(summary: Path, tmp_path: Path) -> None:
    """300,000 notes of nothing, which pack into 2 % of what they unpack to, are a file of their own size."""
    head, (first, second) = read_sections(summary, [0, 1])
    path = tmp_path / "rank0.perfdoc"
    notes = [Note(code="", message="", remedy="")] * 300_000
    forged(summary, path, ["capture", "notes"], notes)
    length = sum(s.unpacked for s in read_sections(path, [])[0].sections)
    assert (path.stat().st_size + 1) * 32 > length - (1 << 20) > 8 << 20
    write_summary(path, head, [first, second])
    assert sum(s.unpacked for s in read_sections(path, [])[0].sections) < 32 * path.stat().st_size


@pytest.mark.parametrize("other", ["summary", "trace"])
def test_captures_of_other_facts(tmp_path: Path, other: str) -> None:
    """One rank measured with two tensor ranks, the other as two replicas: no figure of both is true."""
    one, two = two_ranks(tmp_path / "traces")
    made = summarized(one, tmp_path / "made", settings=["tp=2", "dp=1", "pp=1", "cp=1"])[0].path
    alike = summarized(two, tmp_path / "made", settings=["tp=2", "dp=1", "pp=1", "cp=1"])[0].path
    assert diagnosed([made, alike])
    if other == "summary":
        two = summarized(two, tmp_path / "others", settings=["tp=1", "dp=2", "pp=1", "cp=1"])[0].path
    with pytest.raises(TraceError, match=r"other facts of the job than .*: .*tp"):
        diagnosed([made, two])


def test_a_report_that_nothing_here_reads_counts_after_its_summary(
    summary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(shutil.copy(summary, tmp_path / "rank0.perfdoc"))
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"a report")
    monkeypatch.setenv("PERFDOC_NSYS", "/bin/true")
    assert find_captures([str(tmp_path)]) == [report]
    monkeypatch.setenv("PERFDOC_NSYS", str(tmp_path / "gone"))
    assert find_captures([str(tmp_path)]) == [made]
    monkeypatch.delenv("PERFDOC_NSYS")
    monkeypatch.setenv("PATH", os.devnull)
    assert find_captures([str(tmp_path)]) == [made]
    other = Path(shutil.copy(made, tmp_path / "rank1.perfdoc"))
    trace = tmp_path / "rank1.sqlite"
    trace.write_bytes(b"SQLite format 3\x00")
    assert find_captures([str(tmp_path)]) == [made, trace]
    assert other.is_file()
