"""The file of a summary: a head that says what it is of, packed sections, and a checksum over all of it.

What is in the sections is for a room above to say; here are bytes, bounded before they are unpacked.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from perfdoc.profiling.whole_file import whole_file
from perfdoc.traces.errors import TraceError, UnreadableError
from perfdoc.traces.model import Format

SUFFIX = ".perfdoc"
MAGIC = b"perfdoc-summary\n"
VERSION = 1
UNPACKED_MAX = 1 << 30
"""Bytes of all sections of a file together."""
RATIO_MAX = 32
"""Times the file's size that its sections may take unpacked: a small file is never a large allocation. What
packs better is written with padding."""
_FREE = 1 << 20
"""Bytes that any file may unpack to."""
_HEAD_MAX = 1 << 20
_LENGTH, _CHECKSUM = 4, 32
_LEVEL = 12
_AGAIN = "Write it again: perfdoc summarize TRACE."
_DAMAGED = "Copy it again, or write it again: perfdoc summarize TRACE."


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of one section, as it is in the file and unpacked."""

    packed: int
    unpacked: int


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a summary before anything is unpacked."""

    version: int
    perfdoc: str
    """Version that measured."""
    types: str
    """Digest of the types of what is inside."""
    format: Format
    """Of the trace."""
    name: str
    """File name of the trace."""
    sha256: str
    """Of the trace."""
    request: dict[str, str]
    """Options of the measurement, by name."""
    replayed: bool
    ranks: int
    """Ranks of the job by which the bound on kept replays was shared out; 0 where nothing is replayed."""
    run_sha256: str
    """Of the run.json that the trace lay beside; empty without one."""
    sections: tuple[Section, ...]
    padding: int


def is_summary(path: Path) -> bool:
    """Whether a regular file begins as summaries do; False where it cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def summary_path(capture: Path) -> Path:
    """Where the summary of a capture goes: beside it.

    >>> summary_path(Path("traces/rank0.pt.trace.json.gz")).name
    'rank0.pt.trace.perfdoc'
    """
    name = capture.name
    for end in ("_pqtdir", ".parquetdir", ".gz"):
        name = name.removesuffix(end)
    stem = name if capture.is_dir() else name.rpartition(".")[0] or name
    return capture.with_name(stem + SUFFIX)


def read_head(path: Path) -> Head:
    """The head alone; nothing else is looked at. Raises UnreadableError, TraceError."""
    with _opened(path) as file:
        return _head(path, file)[0]


def read_sections(path: Path, wanted: Sequence[int]) -> tuple[Head, list[bytes]]:
    """The head and some sections, unpacked, in the order asked for; the checksum is that of the whole file.

    Raises UnreadableError where anything of it is not as it was written.
    """
    with _opened(path) as file:
        head, at = _head(path, file)
        size = os.fstat(file.fileno()).st_size
        packed = sum(s.packed for s in head.sections)
        negative = min([head.padding, *(n for s in head.sections for n in (s.packed, s.unpacked))]) < 0
        if negative or at + packed + head.padding + _CHECKSUM != size:
            raise UnreadableError(path, "is not whole.", _DAMAGED)
        if sum(s.unpacked for s in head.sections) > min(UNPACKED_MAX, _FREE + RATIO_MAX * size):
            raise UnreadableError(path, "would unpack to more than a summary holds.", _AGAIN)
        file.seek(0)
        if _digest(file, size - _CHECKSUM) != file.read(_CHECKSUM):
            raise UnreadableError(path, "is damaged: its checksum does not fit.", _DAMAGED)
        if max(wanted, default=-1) >= len(head.sections):
            raise UnreadableError(path, "lacks a part.", _AGAIN)
        found = []
        for index in wanted:
            section = head.sections[index]
            file.seek(at + sum(s.packed for s in head.sections[:index]))
            found.append(_unpacked(path, file.read(section.packed), section.unpacked))
    return head, found


def write_summary(path: Path, head: Head, sections: Sequence[bytes], *, beside: bool = True) -> int:
    """Write it whole or not at all; the bytes written.

    beside: whether it goes beside its trace. Raises TraceError where something else has the name: only a
    summary of the same trace is replaced, which elsewhere its content tells and not its name alone.
    """
    import pyarrow as pa

    taken = os.path.lexists(path)
    if taken and not (path.is_file() and is_summary(path)):
        raise TraceError(path, "is there already, and is no summary.", "Move it, or give another -o.")
    other = _head_of(path) if taken else None
    if other is not None and (other.name != head.name or not (beside or other.sha256 == head.sha256)):
        what = "is the summary of another trace."
        raise TraceError(path, what, "Give another folder with -o, or remove it.")
    total = sum(map(len, sections))
    if total > UNPACKED_MAX:
        raise TraceError(
            path, f"would hold {total:,} bytes, more than can be read back.", "Choose a --window."
        )
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    packed: list[bytes] = [codec.compress(section, asbytes=True) for section in sections]
    size = sum(map(len, packed))
    padding = max(0, -(-(total - _FREE) // RATIO_MAX) - size)
    head = msgspec.structs.replace(
        head,
        sections=tuple(Section(len(p), len(s)) for p, s in zip(packed, sections, strict=True)),
        padding=padding,
    )
    text = msgspec.json.encode(head)
    if len(text) > _HEAD_MAX:
        raise TraceError(path, "would have a head that is too long.", "Give shorter patterns.")
    content = b"".join([MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *packed, bytes(padding)])
    with whole_file(path, replace=True) as part:
        part.write_bytes(content + hashlib.sha256(content).digest())
    return len(content) + _CHECKSUM


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnreadableError(path, f"cannot be opened: {error.strerror}.") from error


def _head(path: Path, file: BinaryIO) -> tuple[Head, int]:
    """The head and where it ends."""
    if file.read(len(MAGIC)) != MAGIC:
        raise UnreadableError(path, "is no summary.", "Give what perfdoc summarize wrote.")
    length = int.from_bytes(file.read(_LENGTH), "little")
    text = file.read(length) if length <= _HEAD_MAX else b""
    if not length or len(text) != length:
        raise UnreadableError(path, "is not whole.", _DAMAGED)
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            what = f"is a summary of version {version}; this perfdoc reads version {VERSION}."
            raise TraceError(path, what, _AGAIN)
        return msgspec.json.decode(text, type=Head), len(MAGIC) + _LENGTH + length
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(path, "is damaged: its head cannot be read.", _DAMAGED) from error


class _Version(msgspec.Struct):
    version: int


def _head_of(path: Path) -> Head | None:
    """Of a summary that is to be replaced; None where it is too damaged to tell."""
    try:
        return read_head(path)
    except TraceError:
        return None


def _digest(file: BinaryIO, length: int) -> bytes:
    found = hashlib.sha256()
    while length and (piece := file.read(min(length, 1 << 20))):
        found.update(piece)
        length -= len(piece)
    return found.digest()


def _unpacked(path: Path, packed: bytes, length: int) -> bytes:
    """Exactly so many bytes; never more are made."""
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            found = stream.read(length)
            more = stream.read(1)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UnreadableError(path, "is damaged: it cannot be unpacked.", _DAMAGED) from error
    if len(found) != length or more:
        raise UnreadableError(path, "is damaged: it unpacks to another length.", _DAMAGED)
    return bytes(found)
