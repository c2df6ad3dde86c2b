"""From what a user types to captures: finding the files, telling their formats apart, reading one."""

from __future__ import annotations

import glob
import hashlib
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto import is_kineto_name, read_kineto
from perfdoc.traces.model import Trace
from perfdoc.traces.nsys import read_nsys_parquet, read_nsys_sqlite
from perfdoc.traces.nsys_rep import read_nsys_rep

NSYS, KINETO = "Nsight Systems", "PyTorch profiler"

_SNIFF_BYTES = 1 << 20
_OWN_FILES = frozenset({"diagnosis.json", "run.json", "answer.json"})
_ACCEPTED = (
    "perfdoc reads Nsight Systems exports (.sqlite, .nsys-rep, a parquetdir folder) and PyTorch profiler "
    "traces (.json, .json.gz)."
)


def find_captures(paths: Sequence[str]) -> list[Path]:
    """Capture files behind files, folders and glob patterns, in natural order, each once.

    Raises TraceError where a path leads to none, or where the formats are mixed.
    """
    found: dict[Path, Path] = {}
    for text in paths:
        path = Path(text)
        if path.is_dir():
            matches = [path] if _is_parquet_folder(path) else _captures_in(path)
            if not matches:
                raise TraceError(path, "is a folder without traces.", _ACCEPTED)
        elif path.exists():
            matches = [path]
        elif glob.has_magic(text):
            # Path.glob knows no absolute patterns.
            matches = sorted(map(Path, glob.glob(text, recursive=True)), key=_natural)  # noqa: PTH207
            if not matches:
                raise TraceError(path, "matches no file.", "Check the pattern.")
        else:
            raise TraceError(path, "does not exist.", "Check the path.")
        for match in matches:
            found.setdefault(match.resolve(), match)
    captures = list(found.values())
    tools = {tool_of(p): p for p in reversed(captures)}
    if len(tools) > 1:
        raise TraceError(
            tools[KINETO],
            f"is a {KINETO} trace, but {tools[NSYS]} is a {NSYS} one: they cannot be mixed in one analysis.",
            "Analyse them one after the other.",
        )
    return captures


def tool_of(path: Path) -> str:
    """Which profiler wrote a capture, told by its content. Raises TraceError where neither did."""
    if path.is_dir():
        return NSYS
    if path.suffix == ".nsys-rep":
        return NSYS
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.") from error
    if not head:
        raise TraceError(path, "is empty.", "Copy or capture it again.")
    if head.startswith(b"SQLite format 3\x00"):
        return NSYS
    if head.startswith(b"\x1f\x8b") or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return KINETO
    if path.suffix in (".sqlite", ".db"):
        raise TraceError(
            path, "is not a SQLite file.", "Export the report: nsys export --type sqlite REPORT.nsys-rep"
        )
    if head.startswith(b"PAR1"):
        raise TraceError(
            path, "is one table of an export.", "Give the folder that `nsys export --type parquetdir` wrote."
        )
    if path.suffix == ".qdstrm":
        raise TraceError(
            path, "is a raw stream.", "Import it with the nsys that wrote it, which makes a .nsys-rep."
        )
    raise TraceError(path, "is not a trace.", _ACCEPTED)


def read_trace(path: Path) -> Trace:
    """Read one capture, whatever its format. Raises TraceError."""
    if path.is_dir():
        return read_nsys_parquet(path)
    if path.suffix == ".nsys-rep":
        return read_nsys_rep(path)
    return read_nsys_sqlite(path) if tool_of(path) == NSYS else read_kineto(path)


def content_sha256(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and hashes of its Parquet files."""
    if path.is_dir():
        parts = [f"{p.name} {content_sha256(p)}" for p in sorted(path.glob("*.parquet"))]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _captures_in(folder: Path) -> list[Path]:
    """Captures directly in a folder, else in its `traces/` (a run directory)."""
    children = sorted(folder.iterdir(), key=_natural)
    exported = {p.stem for p in children if p.suffix == ".sqlite"}
    captures = [
        p
        for p in children
        if (p.is_dir() and _is_parquet_folder(p))
        or (p.suffix == ".sqlite")
        or (p.suffix == ".nsys-rep" and p.stem not in exported)
        or (p.is_file() and p.name not in _OWN_FILES and is_kineto_name(p) and _has_events(p))
    ]
    if not captures and (folder / "traces").is_dir():
        return _captures_in(folder / "traces")
    return captures


def _is_parquet_folder(path: Path) -> bool:
    return (path / "StringIds.parquet").exists() or any(path.glob("CUPTI_ACTIVITY_KIND_*.parquet"))


def _has_events(path: Path) -> bool:
    """Whether a JSON file of a folder looks like a trace: any other JSON there is none of our business."""
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError:
        return False
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, _SNIFF_BYTES)
        except zlib.error:
            return True  # damaged: reading it says so
    return b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """rank2 before rank10."""
    return [(0, int(t), "") if t.isdigit() else (1, 0, t) for t in re.split(r"(\d+)", str(path)) if t]


__all__ = ["KINETO", "NSYS", "content_sha256", "find_captures", "read_trace", "tool_of"]
