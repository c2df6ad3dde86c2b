"""Splitting shell text into words with their lines, without running or expanding anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = re.compile(
    r"""(?P<continued>\\\r?\n)|(?P<newline>\r?\n)|(?P<space>[ \t\r\f\v]+)|(?P<comment>\#[^\n]*)
    |(?P<end>[;&|]+)|(?P<bracket>[()])
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()\n]*\)|\$\(\([^\n]{0,200}?\)\)|`[^`\n]*`|\$\{[^}\n]{0,200}\}
      |[^\s;&|()'"\\`]|['"\\`$])+)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Word:
    """A word, or the end of a command where `text` is None."""

    text: str | None
    line: int
    written: str = ""
    """With its quotes and newlines."""


def split_words(text: str, first_line: int = 1) -> Iterator[Word]:
    """Words and ends of commands. Newlines in brackets, as of a bash array, separate words only."""
    line, depth, position = first_line, 0, 0
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:  # no alternative takes a stray byte: skip it
            position += 1
            continue
        position = match.end()
        kind, piece = match.lastgroup, match.group()
        if kind == "end" or (kind == "newline" and depth == 0):
            yield Word(None, line)
        elif kind == "bracket":
            depth = max(0, depth + (1 if piece == "(" else -1))
            if depth == 0:
                yield Word(None, line)
        elif kind == "word":
            yield Word(unquoted(piece), line, piece)
        line += piece.count("\n")
    yield Word(None, line)


def unquoted(piece: str) -> str:
    """A word without its quotes and backslashes."""
    return re.sub(r"""\\\r?\n|\\(.)|'([^']*)'|["'](?!$)|["']$""", _plain, piece, flags=re.DOTALL)


def _plain(match: re.Match[str]) -> str:
    return match.group(1) or match.group(2) or ""
