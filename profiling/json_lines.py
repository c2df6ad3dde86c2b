"""Files of one JSON object per line that survive the end of their writer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from perfdoc.profiling.errors import CaptureError

Record = TypeVar("Record", bound=msgspec.Struct)
MAX_LINE_BYTES = 1 << 20
"""A longer line is no record of ours."""


class LineWriter:
    """Appends records, each whole in the file when `write` returns.

    A line that an earlier writer left torn is closed off first, so that it spoils no line of this one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: one write per line, so that a killed process tears at most its last line.
        self._file = path.open("ab", buffering=0)
        try:
            if _is_torn(path):
                self._file.write(b"\n")
        except OSError:
            self._file.close()
            raise

    def write(self, record: msgspec.Struct) -> None:
        """Append one record. Raises OSError with the path, of which a full disk is the common cause."""
        rest = memoryview(self._encoder.encode(record) + b"\n")
        try:
            while rest:  # a disk with room for a part of it takes that, and says why at the next call
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_lines(path: Path, record: type[Record]) -> Iterator[Record]:
    """The records of a file. Lines that are no JSON are skipped, for a writer that was killed left them.

    Raises CaptureError where the file cannot be opened, a line is too long, or a whole line is JSON of
    another kind.
    """
    decoder = msgspec.json.Decoder(record)
    try:
        file = path.open("rb")
    except OSError as error:
        raise CaptureError(path, f"cannot be read: {error.strerror}.", "Give the run directory.") from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise CaptureError(path, f"line {number} is longer than {MAX_LINE_BYTES} bytes.")
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except msgspec.ValidationError as error:
                remedy = "It was written by another version of perfdoc, or by something else."
                raise CaptureError(path, f"line {number}: {error}.", remedy) from error
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
