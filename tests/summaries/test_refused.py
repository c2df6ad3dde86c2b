"""Summaries that are damaged, or answer something else: one line, and what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_trace
from perfdoc.diagnose.asked import parse_request
from perfdoc.profiling.errors import UserError
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.summaries.codec import encode
from perfdoc.summaries.reading import OF_THE_JOB
from perfdoc.summaries.writing import summarize
from perfdoc.traces import TraceError
from perfdoc.traces.formats import KINETO, NSYS, tool_of
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import find_captures, read_trace
from perfdoc.traces.summary_file import MAGIC, RATIO_MAX, read_head, read_sections, write_summary
from tests.command import perfdoc
from tests.summaries.made import diagnosed, summarized, two_ranks


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    trace = two_ranks(folder / "traces")[0]
    return summarized(trace, folder / "made")[0].path


@pytest.fixture
def copied(summary: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(summary, tmp_path))


def refused(path: Path, **options: Any) -> str:
    """The one line that an analysis ends with."""
    with pytest.raises((TraceError, UserError)) as found:
        diagnosed([path], **options)
    line = str(found.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line


def test_any_byte_that_is_another(summary: Path, copied: Path) -> None:
    whole = summary.read_bytes()
    chance = Random(0)
    for at in {0, 1, len(MAGIC), len(MAGIC) + 3, len(whole) - 1, *chance.sample(range(len(whole)), 40)}:
        copied.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        assert "summar" in (line := refused(copied)) or at < len(MAGIC), line


def test_any_length_that_is_another(summary: Path, copied: Path) -> None:
    whole = summary.read_bytes()
    for length in {1, len(MAGIC), len(MAGIC) + 4, 300, len(whole) // 2, len(whole) - 32, len(whole) - 1}:
        copied.write_bytes(whole[:length])
        refused(copied)
    copied.write_bytes(whole + b"\0")
    assert "not whole" in refused(copied)


def _rewritten(path: Path, **change: Any) -> None:
    """With another head, and a checksum that fits."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[len(MAGIC) :][:4], "little")
    text = msgspec.json.decode(whole[len(MAGIC) + 4 :][:length])
    text.update(change)
    new = msgspec.json.encode(text)
    content = MAGIC + len(new).to_bytes(4, "little") + new + whole[len(MAGIC) + 4 + length : -32]
    path.write_bytes(content + hashlib.sha256(content).digest())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"perfdoc": "9.9.9"}, "perfdoc 9.9.9"),
        ({"types": "0" * 64}, "measures other things"),
        ({"padding": -1}, "not whole"),
        ({"format": "parquet"}, "cannot read"),
        ({"more": 1}, "damaged"),
        ({"request": {"--window": "capture"}}, "--window capture"),
        ({"replayed": False}, "--no-replay"),
        ({"sections": [{"packed": 0, "unpacked": 0}]}, "not whole"),
    ],
    ids=str,
)
def test_heads_of_others(copied: Path, change: dict[str, Any], said: str) -> None:
    _rewritten(copied, **change)
    assert said in refused(copied)


def test_what_would_unpack_to_more_than_the_file_could_hold(summary: Path, tmp_path: Path) -> None:
    """A section of zeros packs into nothing: it is padded, or refused."""
    path = tmp_path / "zeros.perfdoc"
    head = read_head(summary)
    write_summary(path, head, [bytes(64 << 20)])
    assert path.stat().st_size >= (63 << 20) // RATIO_MAX
    assert read_sections(path, [0])[1] == [bytes(64 << 20)]
    content = path.read_bytes()
    packed = pa.Codec("zstd", compression_level=12).compress(bytes(64 << 20), asbytes=True)
    at = content.index(packed)
    shorter = content[: at + len(packed)]
    path.write_bytes(shorter + hashlib.sha256(shorter).digest())
    _rewritten(path, padding=0)
    with pytest.raises(TraceError, match="more than a summary holds"):
        read_sections(path, [0])
    for unpacked in (0, (64 << 20) - 1, (64 << 20) + 1):
        write_summary(path, head, [bytes(64 << 20)])
        _rewritten(path, sections=[{"packed": len(packed), "unpacked": unpacked}])
        with pytest.raises(TraceError, match="another length"):
            read_sections(path, [0])


def test_values_that_are_no_measurement(summary: Path, tmp_path: Path) -> None:
    """With a checksum that fits: only what is inside tells."""
    path = tmp_path / "other.perfdoc"
    head, (first, second) = read_sections(summary, [0, 1])
    for sections in ([b"", second], [second, first], [encode({"a": 1}), second], [first[:-1], second]):
        write_summary(path, head, sections)
        assert "something else than a measurement" in refused(path)
    start = first.index(b'"window":{')
    end = first.index(b'"end_ns":', start) + len(b'"end_ns":')
    write_summary(path, head, [first[:end] + bytes([first[end] ^ 1]) + first[end + 1 :], second])
    assert "something else than a measurement" in refused(path)
    write_summary(path, head, [first])
    assert "lacks a part" in refused(path)
    write_summary(path, head, [first, encode({"tasks": [None, None, None]})])
    assert "something else than a measurement" in refused(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": "capture"}, "--window capture is asked for"),
        ({"step_range": "x"}, "--step-range x"),
        ({"data_range": "x y"}, "--data-range 'x y'"),
        ({"comm_kernel": "x"}, "--comm-kernel x"),
        ({"settings": ["tp=2", "dp=1", "model=llama3-8b"]}, "with others: "),
    ],
    ids=str,
)
def test_another_question(summary: Path, options: dict[str, Any], said: str) -> None:
    line = refused(summary, **options)
    assert "was summarized with" in line  # or without
    assert said in line


def test_the_same_question_is_answered(tmp_path: Path) -> None:
    trace = two_ranks(tmp_path / "traces")[0]
    asked: dict[str, Any] = {"window": "600ns,90000ns", "settings": ["dtype=bf16"]}
    made = summarized(trace, tmp_path / "made", **asked)[0].path
    assert b"600" in diagnosed([made], **asked)
    del asked["settings"]  # the summary holds them
    assert b"bf16" in diagnosed([made], **asked)
    assert "is asked for" in refused(made)


def test_only_a_summary_of_the_same_trace_is_replaced(tmp_path: Path) -> None:
    one, two = two_ranks(tmp_path / "traces")
    made = summarized(one, tmp_path / "made")[0].path
    before = made.read_bytes()
    assert summarized(one, tmp_path / "made")[0].path.read_bytes() == before
    made.write_bytes(before[:-40])
    assert summarized(one, tmp_path / "made")[0].path.read_bytes() == before
    for other in (tmp_path / "rank0.sqlite", tmp_path / "rank0.db"):  # the same name, and another of one stem
        shutil.copy(two, other)
        with pytest.raises(TraceError, match="summary of another trace"):
            summarized(other, tmp_path / "made")
    beside = summarize(tmp_path / "rank0.sqlite", parse_request([str(other)])).path
    shutil.copy(one, tmp_path / "rank0.sqlite")  # captured again
    assert summarize(tmp_path / "rank0.sqlite", parse_request([str(other)])).path == beside
    assert read_head(beside).sha256 == read_head(made).sha256
    made.write_bytes(b"mine")
    with pytest.raises(TraceError, match="is no summary"):
        summarized(one, tmp_path / "made")
    assert made.read_bytes() == b"mine"
    made.unlink()
    made.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is no summary"):
        summarized(one, tmp_path / "made")
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["rank0.perfdoc"]


def test_which_of_trace_and_summary_counts(tmp_path: Path) -> None:
    """The trace, whichever was named first; by itself the summary, as the tool's that wrote the trace."""
    traces = two_ranks(tmp_path / "traces")
    made = [w.path for w in summarized(traces[0].parent, traces[0].parent)]
    assert find_captures([str(traces[0].parent)]) == traces
    assert find_captures([str(made[0]), str(traces[0])]) == [traces[0]]
    traces[0].unlink()
    assert find_captures([str(traces[0].parent)]) == [made[0], traces[1]]
    assert tool_of(made[0]) == NSYS
    kineto = made[0].with_name("k.perfdoc")
    shutil.copy(made[0], kineto)
    _rewritten(kineto, format="kineto")
    assert tool_of(kineto) == KINETO
    with pytest.raises(TraceError, match="cannot be mixed"):
        find_captures([str(kineto), str(traces[1])])
    os.mkfifo(kineto.with_name("pipe.perfdoc"))
    with pytest.raises(TraceError, match="pipe"):
        find_captures([str(kineto.with_name("pipe.perfdoc"))])


def test_commands_that_need_the_timeline(summary: Path, tmp_path: Path) -> None:
    for words in (
        ("ranges", summary),
        ("export", summary, "-o", "x.pftrace.gz"),
        ("redact", summary, "-o", "copy.sqlite"),
        ("summarize", summary),
    ):
        done = perfdoc(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "is a summary" in done.stderr


def test_facts_that_a_rank_never_reads(tmp_path: Path) -> None:
    """What OF_THE_JOB names may be given later, because no measurement of a rank has looked at it."""
    read: set[str] = set()

    class Watched(JobFacts):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    trace = two_ranks(tmp_path / "traces")[0]
    facts = Watched(dtype="bf16", tp=1, cp=1, pp=1, dp=2, world_size=2)
    measure_trace(read_trace(trace), WindowRequest(), facts, replay_and_keep)
    assert {"dtype", "pp"} <= read
    assert not read & (OF_THE_JOB - {"sources"})


def test_the_command(tmp_path: Path) -> None:
    traces = two_ranks(tmp_path / "traces")
    done = perfdoc("summarize", "traces", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.split(":")[1].split()[1] for line in done.stderr.splitlines()] == [
        str(t.relative_to(tmp_path).with_suffix(".perfdoc")) for t in traces
    ]
    for trace in traces:
        trace.unlink()
    done = perfdoc("analyze", "traces", "--format", "json", "-o", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert perfdoc("diff", "traces", "report", cwd=tmp_path).stdout.startswith("No change")
    assert perfdoc("summarize", "traces", cwd=tmp_path).returncode == 2
    assert perfdoc("analyze", "traces/rank0.perfdoc", "--jobs", "2", cwd=tmp_path).returncode == 0
