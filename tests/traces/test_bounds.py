"""What a small file can cost: memory and time stay in proportion to what it is, or it is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdoc.compare.stored import read_diagnosis
from perfdoc.redact.nsys import copy_nsys
from perfdoc.redact.texts import Names
from perfdoc.traces import TraceError
from perfdoc.traces.kineto import document, unpack
from perfdoc.traces.kineto import repair as repairing
from perfdoc.traces.kineto.document import read_document
from perfdoc.traces.kineto.repair import TooBrokenError, repair
from perfdoc.traces.load import read_trace
from perfdoc.traces.model_config.read import read_document as read_config
from perfdoc.traces.nsys import parquet_folder
from tests.amount import some
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.traces.pages import multiply_rows
from tests.traces.test_odd_columns import KERNEL, NVTX, folder


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Three kernels in 80 kB."""
    builder = TimelineBuilder()
    device = builder.process().device()
    for i in range(3):
        device.kernel("gemm", 100 + 200 * i, 200 + 200 * i)
    return write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")


@pytest.fixture
def quickly() -> Iterator[None]:
    begin = time.process_time()
    yield
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("levels", [1, 2, 5])  # 300 rows, which were taken for kernels, to 3 * 10^10
@pytest.mark.parametrize("table", [KERNEL, "StringIds", "TARGET_INFO_GPU"])
@pytest.mark.usefixtures("quickly")
def test_pages_that_name_one_page_again_and_again(export: Path, table: str, levels: int) -> None:
    multiply_rows(export, table, levels)
    try:
        assert len(read_trace(export).kernels) == 3
    except TraceError as error:
        assert "more rows than" in error.what or "malformed" in error.what  # noqa: PT017
        return
    assert table == "StringIds"  # of which rows are looked up, and none is read twice


@pytest.mark.parametrize("levels", [1, 2, 5])
@pytest.mark.parametrize("table", [KERNEL, "StringIds"])
@pytest.mark.usefixtures("quickly")
def test_a_copy_without_names_has_no_more_rows_than_the_file(export: Path, table: str, levels: int) -> None:
    """128 kB took 10 s, for 3 million rows that were written to the disk."""
    multiply_rows(export, table, levels)
    target = export.with_name("copy.sqlite")
    with pytest.raises(TraceError, match=r"more rows than|malformed"):
        copy_nsys(export, target, Names())
    assert target.stat().st_size < 10 * export.stat().st_size


def test_a_file_is_read_where_little_memory_may_be_claimed(export: Path) -> None:
    """The driver claimed 8 GB a column of any file, and under `ulimit -v` the process died of it."""
    resource = pytest.importorskip("resource")
    limit = 4 << 30
    code = (
        "import sys, pathlib; from perfdoc.traces.load import read_trace\n"
        "print(len(read_trace(pathlib.Path(sys.argv[1])).kernels))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(export)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


@pytest.mark.parametrize(
    "unit",
    some(
        [b'""', b"nan,", b'"\\x"', b'"\\n"', b'"\\ud800"', b"\xff", b"\x01", b"-", b'\\"', b"0,"],
        [b'""', b"nan,", b"\xff", b"-"],
    ),
    ids=repr,
)
@pytest.mark.parametrize("begin", [b"", b'"'], ids=["outside", "inside"])
def test_repair_takes_a_few_times_the_text(begin: bytes, unit: bytes) -> None:
    """The worst took 90 times: a piece of text for each of its tokens."""
    text = begin + unit * ((1 << 17) // len(unit))
    tracemalloc.start()
    try:
        repair(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * len(text)


@pytest.mark.usefixtures("quickly")
def test_repair_looks_once_at_a_quote_that_nothing_closes() -> None:
    text = b"nan" + b'"' + b'\\"' * (1 << 20)  # each of which could begin another text without an end
    assert repair(text) == b"null" + text[3:]


def test_repairs_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "MAX_REPAIRS", 3)
    for broken in (b"nan,", b'"\\x\\x"', b'"\\x"'):
        assert repair(broken * (4 // (1 + broken.count(b"x\\")) - 1))
        with pytest.raises(TooBrokenError):
            repair(broken * 4)
    path = tmp_path / "x.json"
    path.write_bytes(b'{"traceEvents": [%s]}' % (b"nan," * 9))
    with pytest.raises(TraceError, match="cannot be read"):
        read_document(path)


def test_a_gzip_file_unpacks_to_what_traces_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "_FREE_UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(TraceError, match="more than 1,048,576 bytes"):
        read_document(path)


def test_lists_of_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of two bytes takes 56 of memory."""
    monkeypatch.setattr(unpack, "_FREE_UNPACKED_BYTES", 1 << 20)
    path = tmp_path / "x.json"
    path.write_bytes(b"[" + b"0," * (1 << 20) + b"0]")
    with pytest.raises(TraceError, match="lists of next to nothing"):
        read_document(path)
    monkeypatch.setattr(unpack, "PIECE_BYTES", 1 << 16)
    given: list[int] = []
    with pytest.raises(TraceError, match="lists of next to nothing"):
        given.extend(map(len, unpack.unpacked(path, 1 << 30)))
    assert 0 < sum(given) <= 1 << 20  # no more than what is free


def test_heads_in_front_of_the_events_are_no_work_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 objects that hold a key of that name, each of which could be the list of events."""
    tried: list[int] = []
    decode = document._FILE.decode
    counting = SimpleNamespace(decode=lambda text: (tried.append(len(text)), decode(text))[1])
    monkeypatch.setattr(document, "_FILE", counting)
    monkeypatch.setattr(unpack, "PIECE_BYTES", 1 << 14)
    path = tmp_path / "x.json"
    kernel = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":1}'
    path.write_bytes(b'{"a":[' + b'{"traceEvents":[7]},' * 2_000 + b'0],"traceEvents":[' + kernel + b"]}")
    assert len(read_trace(path).kernels) == 1
    assert 16 < len(tried) < 200


def test_a_limit_is_not_claimed(tmp_path: Path) -> None:
    """Half a gigabyte was, of any diagnosis."""
    path = tmp_path / "diagnosis.json"
    path.write_text("{}")
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="is no diagnosis"):
            read_diagnosis(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1 << 20


def test_yaml_of_a_megabyte_at_most(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\n" + b"#" * (1 << 20))
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_config(path)


class TestParquet:
    """Files of some kB that say, or that hold, what would take gigabytes."""

    def test_one_value_for_many_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_folder, "_FREE_BYTES", 1 << 20)
        path = folder(tmp_path / "p", {}) / f"{KERNEL}.parquet"
        one = pq.read_table(path)
        rows = pa.table({c: pa.array([one[c][0].as_py()]).take(_zeros(100_000)) for c in one.column_names})
        pq.write_table(rows, path)
        assert path.stat().st_size < 50_000
        with pytest.raises(TraceError, match="more than a file of its size can hold"):
            read_trace(path.parent)

    def test_one_long_text_for_many_rows(self, tmp_path: Path) -> None:
        text = pa.DictionaryArray.from_arrays(_zeros(100_000).cast(pa.int32()), pa.array(["x" * 1_000_000]))
        columns = {c: pa.array(v).take(_zeros(100_000)) for c, v in NVTX.items()}
        path = folder(tmp_path / "p", {"NVTX_EVENTS": {**columns, "text": text}})
        with pytest.raises(TraceError, match="repeats its texts"):
            read_trace(path)

    def test_a_file_that_lies_of_its_rows(self, tmp_path: Path) -> None:
        path = folder(tmp_path / "p", {}) / f"{KERNEL}.parquet"
        content = path.read_bytes()
        end = len(content) - 8
        footer = content[end - int.from_bytes(content[-8:-4], "little") : end]
        # Thrift's compact form of a field of 64 bits, 1, where it counts the rows of the file.
        at = footer.index(b"\x16\x02\x19\x1c")
        lying = footer[: at + 1] + b"\xfe\xff\xff\xff\xff\x7f" + footer[at + 2 :]
        path.write_bytes(content[: end - len(footer)] + lying + len(lying).to_bytes(4, "little") + b"PAR1")
        assert pq.read_metadata(path).num_rows > 1 << 40
        with pytest.raises(TraceError, match="more than a file of its size can hold"):
            read_trace(path.parent)

    @pytest.mark.parametrize("code", [8, 2**31 - 1, -1, -(2**31)])
    def test_a_code_beyond_the_dictionary(self, tmp_path: Path, code: int) -> None:
        """24 rows of 8 texts: their codes of 3 bits replaced by one of 32 bits for all."""
        columns = {c: pa.array(v).take(_zeros(24)) for c, v in NVTX.items()}
        path = folder(tmp_path / "p", {}) / "NVTX_EVENTS.parquet"
        table = pa.table({**columns, "text": [c * 4 for c in "abcdefgh"] * 3})
        pq.write_table(table, path, compression="none", use_dictionary=["text"])
        content, rows = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(0)
        text = next(c for c in map(rows.column, range(rows.num_columns)) if c.path_in_schema == "text")
        end = text.dictionary_page_offset + text.total_compressed_size
        # The page ends with its codes: their width, three times eight of them, nine bytes.
        assert content[end - 11 : end - 9] == bytes([3, 3 << 1 | 1])
        run = bytes([32, 24 << 1]) + code.to_bytes(4, "little", signed=True)
        content[end - 11 : end] = run.ljust(11, b"\0")
        path.write_bytes(content)
        with pytest.raises(TraceError, match="not in its dictionary"):
            read_trace(path.parent)


def _zeros(count: int) -> pa.Array:
    return pa.nulls(count, pa.int64()).fill_null(0)
