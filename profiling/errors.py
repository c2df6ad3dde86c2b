"""The one error that a run directory or a capture raises."""

from __future__ import annotations

from pathlib import Path


class CaptureError(ValueError):
    """A run directory or a capture that cannot be made or read: where, what is wrong, what to do."""

    def __init__(self, path: Path | str, what: str, remedy: str = "") -> None:
        self.path = str(path)
        self.what = what
        self.remedy = remedy
        super().__init__(f"{self.path}: {what}" + (f" {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[type[CaptureError], tuple[str, str, str]]:
        """Exceptions travel between processes by their constructor's arguments."""
        return type(self), (self.path, self.what, self.remedy)
