"""Paths as one pastes them for others: without the folders of one's own machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath


def shown_paths(names: Sequence[str]) -> list[str]:
    """Each path from the folder that all of them share; relative ones and other words as they are.

    A name may hold several paths, with blanks between. One path alone keeps its last part.

    >>> shown_paths(["/home/me/runs/a/report", "/home/me/runs/b/report"])
    ['a/report', 'b/report']
    >>> shown_paths(["/home/me/a.sqlite", "b.sqlite"])
    ['a.sqlite', 'b.sqlite']
    """
    absolute = sorted({word for name in names for word in name.split() if _is_absolute(word)})
    if not absolute:
        return list(names)
    shared = os.path.commonpath(absolute)
    if shared in absolute:
        shared = str(PurePath(shared).parent)
    return [_below(shared, name) for name in names]


def _below(shared: str, name: str) -> str:
    words = name.split()
    if not any(map(_is_absolute, words)):
        return name
    return " ".join(os.path.relpath(word, shared) if _is_absolute(word) else word for word in words)


def _is_absolute(word: str) -> bool:
    return PurePath(word).is_absolute()
