"""Interning of the names of a trace."""

from __future__ import annotations


class Strings:
    """Gives every distinct string one index; index 0 is the empty string."""

    def __init__(self) -> None:
        self.values: list[str] = [""]
        self._index: dict[str, int] = {"": 0}

    def intern(self, text: str) -> int:
        """The index of a string, the same for equal strings."""
        index = self._index.get(text)
        if index is None:
            # A lone surrogate is not text: it could be neither written as UTF-8 nor matched.
            clean = text if text.isascii() else text.encode("utf-8", "replace").decode()
            if clean != text:
                index = self.intern(clean)
            else:
                index = len(self.values)
                self.values.append(text)
            self._index[text] = index
        return index
