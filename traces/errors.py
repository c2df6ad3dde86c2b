"""The one error that a bad input raises."""

from __future__ import annotations

from pathlib import Path


class TraceError(ValueError):
    """A file that cannot be read as a trace: what is wrong, where, and what to do.

    The command line prints it as one line and ends with exit code 2.
    """

    def __init__(self, path: Path | str, what: str, remedy: str = "") -> None:
        self.path = str(path)
        self.what = what
        self.remedy = remedy
        super().__init__(f"{self.path}: {what}" + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[TraceError], tuple[str, str, str]]:
        """Exceptions travel from worker processes by their constructor's arguments."""
        return type(self), (self.path, self.what, self.remedy)


class NoGpuActivityError(TraceError):
    """A whole and readable capture in which no GPU did anything: of one rank among many, a gap to report."""
