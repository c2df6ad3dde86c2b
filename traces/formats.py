"""Every format of a trace that perfdoc reads: one record each. A new reader is a record more."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from perfdoc.records import dataclass
from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.foreign import HEAD_BYTES, what_is
from perfdoc.traces.model import Trace
from perfdoc.traces.summary_file import SUFFIX, is_summary, read_head

NSYS, KINETO = "Nsight Systems", "PyTorch profiler"
_SNIFF_BYTES = 1 << 20
_OWN_FILES = frozenset({"diagnosis.json", "run.json", "answer.json"})


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """How traces of one format are told from others, and read."""

    name: str
    """As diagnosis.json names it (`Input.format`)."""
    tool: str
    """The profiler. Traces of two are not mixed in one analysis; of one they may be forms of one capture."""
    files: str
    """In words, what a user gives."""
    recognises: Callable[[Path, bytes], bool]
    """Whether a file that begins with these bytes, or a folder (which has none), is one."""
    stem: Callable[[Path], str | None]
    """The name of a file without what tells one form of a capture from another; None where no such trace is
    named so."""
    read: Callable[[Path], Trace]
    """Raises TraceError."""
    is_capture: Callable[[Path], bool] = lambda path: True
    """Whether a child of a folder that is named so is one: others may have such names."""
    preference: Callable[[Path], tuple[int, int, int]] = lambda path: (2, 0, 0)
    """Of several forms of one capture the largest counts; a summary's is (1, 0, 0)."""


_REPORTS = (".nsys-rep", ".qdrep")
"""What nsys writes; the second name until 2021.3."""


def _stem_of(*suffixes: str) -> Callable[[Path], str | None]:
    return lambda path: path.stem if path.suffix in suffixes else None


def _parquet_stem(path: Path) -> str | None:
    return path.name.removesuffix("_pqtdir").removesuffix(".parquetdir") if path.is_dir() else None


def is_parquet_folder(path: Path) -> bool:
    """Whether a folder holds tables of an export."""
    return (path / "StringIds.parquet").exists() or any(path.glob("CUPTI_ACTIVITY_KIND_*.parquet"))


def _kineto_stem(path: Path) -> str | None:
    """Of `.json`, `.pt.trace.json`, either with `.gz`."""
    stem, count = re.subn(r"\.json(\.gz)?$", "", path.name, flags=re.IGNORECASE)
    return stem if count else None


def _begins_as_json(path: Path, head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    is_list = text[:1] == b"[" and text[1:].lstrip()[:1] in (b"{", b"]", b"")  # a log begins `[2026-11-27`
    return head.startswith(b"\x1f\x8b") or is_list or (text[:1] == b"{" and text[1:2] != b"\0")


def _has_events(path: Path) -> bool:
    """Whether a JSON file of a folder looks like a trace: any other JSON there is none of our business."""
    if path.name in _OWN_FILES or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError:
        return False
    if not head:  # a rank's trace that was lost: reading it says so
        return re.match(r"rank[_-]?\d+\b", path.name) is not None
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, _SNIFF_BYTES)
        except zlib.error:
            return True  # damaged: reading it says so
    return b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head)


def _newer_then_plain(path: Path) -> tuple[int, int, int]:
    try:
        age = path.stat().st_mtime_ns
    except OSError:
        age = 0
    return (2, age, path.suffix.lower() != ".gz")


def _reader(name: str, module: str) -> Callable[[Path], Trace]:
    """A function of ours, imported when the first trace of its format is there."""
    return lambda path: getattr(import_module(f"perfdoc.traces.{module}.read"), name)(path)


def _report_preference(path: Path) -> tuple[int, int, int]:
    from perfdoc.traces.nsys.read import nsys_command

    return (2 if shutil.which(nsys_command() or "") else 0, 0, 0)


FORMATS: tuple[TraceFormat, ...] = (
    TraceFormat(
        name="nsys-parquet",
        tool=NSYS,
        files="a parquetdir folder",
        recognises=lambda path, head: path.is_dir(),
        stem=_parquet_stem,
        read=_reader("read_nsys_parquet", "nsys"),
        is_capture=is_parquet_folder,
        preference=lambda path: (3, 0, 0),
    ),
    TraceFormat(
        name="nsys-rep",
        tool=NSYS,
        files=".nsys-rep",
        recognises=lambda path, head: path.suffix in _REPORTS,
        stem=_stem_of(*_REPORTS),
        read=_reader("read_nsys_rep", "nsys"),
        preference=_report_preference,
    ),
    TraceFormat(
        name="nsys-sqlite",
        tool=NSYS,
        files=".sqlite",
        recognises=lambda path, head: head.startswith(b"SQLite format 3\x00"),
        stem=_stem_of(".sqlite"),
        read=_reader("read_nsys_sqlite", "nsys"),
        preference=lambda path: (4, 0, 0),
    ),
    TraceFormat(
        name="kineto",
        tool=KINETO,
        files=".json, .json.gz",
        recognises=_begins_as_json,
        stem=_kineto_stem,
        read=_reader("read_kineto", "kineto"),
        is_capture=_has_events,
        preference=_newer_then_plain,
    ),
)


def named_as(path: Path) -> TraceFormat | None:
    """Whose traces are named so; a folder is of one format alone."""
    return next((one for one in FORMATS if one.stem(path) is not None), None)


def accepted() -> str:
    """What perfdoc reads, in a sentence."""
    files: dict[str, list[str]] = {}
    for one in FORMATS:
        files.setdefault(one.tool, []).append(one.files)
    tools = "; ".join(f"{tool} ({', '.join(forms)})" for tool, forms in files.items())
    return f"perfdoc reads traces of {tools}; and summaries of them ({SUFFIX})."


def format_of(path: Path) -> TraceFormat:
    """Of a capture, told by its content, but for folders and reports.

    Raises TraceError where it is none, or a summary.
    """
    head = b""
    if not path.is_dir():
        require_regular(path)  # opening a pipe would wait
        try:
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise TraceError(path, f"cannot be opened: {error.strerror}.") from error
    if is_summary(path):
        raise TraceError(path, "is a summary, which holds no timeline.", "Give the trace itself.")
    found = next((one for one in FORMATS if one.recognises(path, head)), None)
    if found is None:
        raise _no_trace(path, head)
    return found


def tool_of(path: Path) -> str:
    """Which profiler wrote a capture, or the trace of a summary. Raises TraceError where none did."""
    if not is_summary(path):
        return format_of(path).tool
    name = read_head(path).format
    tool = next((one.tool for one in FORMATS if one.name == name), None)
    if tool is None:
        raise TraceError(path, "is a summary of a trace that this perfdoc cannot read.", accepted())
    return tool


def _no_trace(path: Path, head: bytes) -> TraceError:
    if not head:
        return TraceError(path, "is empty.", "Copy or capture it again.")
    if path.suffix in (".sqlite", ".db") and what_is(head, "") is None:
        remedy = "Export the report: nsys export --type sqlite REPORT.nsys-rep"
        return TraceError(path, "is not a SQLite file.", remedy)
    if head.startswith(b"PAR1"):
        remedy = "Give the folder that `nsys export --type parquetdir` wrote."
        return TraceError(path, "is one table of an export.", remedy)
    return TraceError(path, *(what_is(head, path.suffix) or ("is not a trace.", accepted())))
