"""The words that stay in the names of ranges."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def known_words() -> frozenset[str]:
    """The words of known_words.txt, in lower case."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())
