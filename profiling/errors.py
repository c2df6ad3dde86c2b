"""A user's mistake, what is wrong with a file, and how any error is said in one line."""

from __future__ import annotations

from pathlib import Path


class UserError(ValueError):
    """A mistake that its reader can correct, in one line: what is wrong, and what to do."""


class TraceError(UserError):
    """A trace, a run directory or another file that cannot be read or made: where, what, and what to do."""

    def __init__(self, path: Path | str, what: str, remedy: str = "") -> None:
        self.path = str(path)
        self.what = what
        self.remedy = remedy
        super().__init__(f"{self.path}: {what}" + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[TraceError], tuple[object, ...]]:
        """Exceptions travel between processes by their constructor's arguments."""
        return type(self), (self.path, self.what, self.remedy)


def one_line(error: BaseException) -> str:
    """What an error says, in one line.

    Of the system's errors the file and the reason: `run/run.json: No space left on device`. Of text that
    cannot be decoded, that.
    """
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):  # whose own words are Python's, and count from somewhere inside
        return "holds text that is not UTF-8"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
