"""Which files a caller may name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from perfdoc.notebook.errors import PerfdocError
from perfdoc.results.names import shorten

_GLOB = frozenset("*?[")


@dataclass(frozen=True, kw_only=True)
class Reach:
    """root: the folder that holds every file that may be read; None: any file that the caller names."""

    root: Path | None

    def path(self, text: str) -> str:
        """A path or a pattern as it is, one that is relative beside the root. Raises PerfdocError outside."""
        if "\0" in text:
            raise PerfdocError("a path holds a zero byte.")
        if self.root is None:
            return text
        path = self.root / text
        parts = path.parts
        plain = next((at for at, part in enumerate(parts) if _GLOB & {*part}), len(parts))
        if ".." in parts[plain:]:
            raise self._outside(text)
        self._check(Path(*parts[:plain]), text)
        return str(path)

    def found(self, paths: Iterable[Path]) -> None:
        """What a pattern or a folder led to, and what of a run directory is read beside its captures. Raises
        PerfdocError for what lies outside, by a link or as the directory around the root."""
        if self.root is None:
            return
        runs = set()
        for path in paths:
            self._check(path, str(path))
            folder = path.resolve().parent
            runs |= {folder.parent} if folder.name == "traces" else set()
        for run in runs:
            for path in (run / "run.json", *run.glob("*/*")):
                if path.exists():
                    self._check(path, str(path))

    def _check(self, path: Path, text: str) -> None:
        assert self.root is not None
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise self._outside(text)

    def _outside(self, text: str) -> PerfdocError:
        return PerfdocError(f"{shorten(text, 300)}: lies outside of --root; nothing of it was read.")
