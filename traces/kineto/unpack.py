"""The bytes of a trace file, plain or gzip, in pieces and within bounds.

A thread unpacks the next piece while one is read."""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.foreign import HEAD_BYTES, what_is

_MAX_UNPACKED = 128
"""Times the size of a gzip file. Traces unpack to 26 times theirs at most, zeros to a thousand times."""
_FREE_UNPACKED_BYTES = 64 << 20
_LEAST_BYTES_A_COMMA = 4
"""Of a trace of more than `_FREE_UNPACKED_BYTES`; the densest seen has 7. What holds more is lists of next to
nothing, whose entries take 56 bytes of memory each, however short they are."""

PIECE_BYTES = 8 << 20
_PACKED_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
_BOM = b"\xef\xbb\xbf"
RECAPTURE = (
    "Export the trace again (the profiler writes the end of the file last); if that gives the same, record "
    "without Python stacks (with_stack=False) or with a newer PyTorch, which writes valid JSON."
)
_PROFILE_LESS = "Profile fewer steps (torch.profiler.schedule) or without with_stack and record_shapes."
NOT_A_TRACE = "Give the file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote."


def unpacked(path: Path, max_bytes: int, *, whole: bool = True) -> Generator[bytes, None, None]:
    """The file without a byte order mark, in pieces of `PIECE_BYTES` (the last is shorter).

    The file is opened for reading only. Close what is not read to its end: a thread is at work on it, for
    which the garbage collector, which may run anywhere, must not wait. whole: a gzip file that breaks off is
    an error, and not the end. Raises TraceError for a file that is missing, empty, damaged or longer than
    `max_bytes`.
    """
    length, commas, blank = 0, 0, True
    try:
        with path.open("rb") as file, ExitStack() as stack:
            is_gzip = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if is_gzip:
                packed = os.fstat(file.fileno()).st_size
                max_bytes = min(max_bytes, max(_FREE_UNPACKED_BYTES, _MAX_UNPACKED * packed))
            plain = iter(lambda: file.read(PIECE_BYTES), b"")
            for piece in stack.enter_context(closing(_ahead(_gunzipped(file) if is_gzip else plain))):
                if length + len(piece) > max_bytes:
                    raise TraceError(
                        path,
                        f"holds more than {max_bytes:,} bytes of JSON, the most that is read.",
                        _PROFILE_LESS,
                    )
                if is_gzip and not length and (inside := what_is(piece[:HEAD_BYTES], Path(path.stem).suffix)):
                    raise TraceError(path, f"unpacked, it {inside[0]}", inside[1])
                if not length and piece[:64].lstrip(_BOM + b" \t\r\n").startswith(b"\0"):
                    # A disk's hole or a packed one: not worth reading to its end.
                    raise TraceError(path, "begins with zeros, and is no JSON.", RECAPTURE)
                text = piece if length else piece.removeprefix(_BOM)
                commas += int(np.count_nonzero(np.frombuffer(piece, np.uint8) == ord(",")))
                length, blank = length + len(piece), blank and (not piece or piece.isspace())
                if length > _FREE_UNPACKED_BYTES and commas * _LEAST_BYTES_A_COMMA > length:
                    what = "holds lists of next to nothing, and is no profiler trace."
                    raise TraceError(path, what, NOT_A_TRACE)
                yield text
    except EOFError:
        if whole or not length:
            raise TraceError(path, "the gzip file is truncated.", RECAPTURE) from None
    except zlib.error as error:
        raise TraceError(path, f"the gzip file is damaged: {error}.", "Copy or export it again.") from None
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", "Check the path.") from None
    if blank:
        raise TraceError(path, "the file is empty.", RECAPTURE)


def _ahead(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The same pieces, one of them made ahead; a file of one piece needs no thread."""
    first = next(pieces, None)
    if first is None:
        return
    if len(first) < PIECE_BYTES:
        yield first
        yield from pieces
        return
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        yield first
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """Raises EOFError where the file ends in the middle, zlib.error where it is damaged.

    Not by the module gzip, which unpacks 8 KiB at a time: a thread beside one that computes would wait for
    its turn at each.
    """
    inflate, packed = zlib.decompressobj(_GZIP), b""
    parts: list[bytes] = []
    room = PIECE_BYTES
    while True:
        if not packed and not (packed := file.read(_PACKED_BYTES)) and not inflate.eof:
            part = inflate.decompress(b"", room)
            if not part and not inflate.eof:
                if parts:
                    yield b"".join(parts)
                raise EOFError
        elif inflate.eof:
            packed = packed.lstrip(b"\0")  # zeros may follow a member, and then another member
            if packed and not _GZIP_MAGIC.startswith(packed[:2]):
                break  # whole by its checksum: what stands behind it is none of it, as gunzip has it
            if packed:
                inflate = zlib.decompressobj(_GZIP)
            elif not (packed := file.read(_PACKED_BYTES)):
                break
            continue
        else:
            part = inflate.decompress(packed, room)
            packed = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        parts.append(part)
        room -= len(part)
        if room <= 0:
            yield b"".join(parts)
            parts, room = [], PIECE_BYTES
    if room < PIECE_BYTES:
        yield b"".join(parts)
