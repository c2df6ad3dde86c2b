"""The standard streams of a command: closed ones, ones that fail, and how wide to write."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TextIO

from perfdoc.patterns import pattern_of

STDOUT, STDERR = 1, 2
_ERRORS = "perfdoc-plain"
_NOT_ASCII = pattern_of(r"[^\x00-\x7e]")
_LEAST_COLUMNS, _MOST_COLUMNS = 40, 100


class StdoutError(Exception):
    """Standard output cannot be written. Not an OSError, for which the option parser has an exit code."""

    def __init__(self, error: OSError) -> None:
        self.closed_pipe = error.errno == errno.EPIPE
        super().__init__(f"standard output: cannot be written: {error.strerror}.")


class _Raw(io.RawIOBase):
    """A file descriptor; after its first failure what is written goes nowhere."""

    def __init__(self, descriptor: int, *, quiet: bool) -> None:
        self._descriptor = descriptor
        self._quiet = quiet
        self._failed = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if self._failed:
            return len(data)
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            self._failed = True
            if self._quiet:
                return len(data)
            raise StdoutError(error) from error


_PLAIN: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys("·—\u2013\u2212", "-"),
        "µ": "u",
        "\u00d7": "x",
        "→": "->",
        "…": "...",
        "≤": "<=",
        "≥": ">=",
    }
)
"""perfdoc's own signs, as ASCII writes them."""


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    if (sign := _PLAIN.get(error.object[error.start])) is not None:
        return sign, error.start + 1
    return codecs.backslashreplace_errors(error)


def guard_streams() -> None:
    """Put guarded streams in place of sys.stdout and sys.stderr, which may be None (`>&-`).

    What the encoding cannot say (LANG=C) is written plainly, or escaped. A standard output that fails
    raises StdoutError, a standard error that fails is silent: there is nobody left to tell.
    """
    _occupy()
    codecs.register_error(_ERRORS, _plain)
    sys.stdout = _guarded(STDOUT, sys.stdout, quiet=False)
    sys.stderr = _guarded(STDERR, sys.stderr, quiet=True)


def json_text(data: object) -> str:
    """Indented, with a newline at its end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def write_json(content: bytes) -> None:
    """JSON to standard output: UTF-8 whatever its encoding; what a terminal obeys is escaped."""
    sys.stdout.flush()
    sys.stdout.buffer.write(_NOT_ASCII.sub(_escaped, content.decode()).encode())


def _escaped(found: re.Match[str]) -> str:
    """A character as it is, or as JSON's escape where it controls or reorders what is shown."""
    char = found.group()
    if unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp"):
        return char
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def columns() -> int:
    """Columns to write text in: what the terminal has, 40 to 100; 100 where standard output is none."""
    if not sys.stdout.isatty():
        return _MOST_COLUMNS
    return min(_MOST_COLUMNS, max(_LEAST_COLUMNS, shutil.get_terminal_size((_MOST_COLUMNS, 24)).columns))


def coloured() -> bool:
    """Whether standard output is a terminal that shows colours, and they are wanted (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _occupy() -> None:
    """Take closed descriptors, or the next file that is opened would be standard output.

    For reading only, so that writing to it fails as it would have done.
    """
    for descriptor in (0, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                # The lowest free descriptor, which is this one; worker processes need it as well.
                os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)


def _guarded(descriptor: int, old: TextIO | None, *, quiet: bool) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(_Raw(descriptor, quiet=quiet)),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors=_ERRORS,
        line_buffering=quiet or bool(getattr(old, "line_buffering", False)),
    )
