"""Words and commands of a script: quotes, brackets, comments, documents. Nothing is expanded or run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = re.compile(
    r"""(?P<continued>\\\r?\n)|(?P<newline>\r?\n)|(?P<space>[ \t\r\f\v]+)|(?P<comment>\#[^\n]*)
    |(?P<end>[;&|]+)|(?P<bracket>[()])
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()\n]*\)
      |\$\(\((?:[^()\n]|\([^()\n]{0,80}\)){0,80}\)\)|\$\(\([^\n]{0,200}?\)\)|`[^`\n]*`|\$\{[^}\n]{0,200}\}
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
    text = _DOCKERS.sub(lambda m: f"{m[1]} {re.sub(_LISTED, _as_word, m[2])}", _without_documents(text))
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:  # no alternative takes a stray byte: skip it
            position += 1
            continue
        position = match.end()
        kind, piece = match.lastgroup, match.group()
        if kind == "end" or (kind == "newline" and depth == 0):
            yield Word(None, line, piece if piece == "|" else "")
        elif kind == "bracket":
            pattern = piece == ")" and depth == 0  # of a `case`, whose words are no command's
            depth = max(0, depth + (1 if piece == "(" else -1))
            if depth == 0:
                yield Word(None, line, piece if pattern else "")
        elif kind == "word":
            yield Word(unquoted(piece), line, piece)
        line += piece.count("\n")
    yield Word(None, line)


_LISTED = r',|"(?:\\(?:["\\/bfnrt]|\r?\n)|[^"\\\n])*"'
_DOCKERS = re.compile(rf"^(CMD|ENTRYPOINT)[ \t]*\[((?:{_LISTED}|\\\r?\n|[ \t\r])*)\]", re.M)
"""A program and its words as a Dockerfile lists them, in JSON."""
_DOCUMENT = re.compile(
    r"^(?P<command>[^\n#]{0,2000}?)(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w{1,40})(?P=quote)[^\n]*\n"
    r"(?P<body>(?:(?![ \t]*(?P=end)[ \t]*$)[^\n]*\n){0,5000})(?:[ \t]*(?P=end)[ \t]*$)?",
    re.MULTILINE,
)
_READ_AS_SCRIPT = re.compile(
    r"\b(bash|sh|srun|sbatch|ssh|torchrun|read)\b|=[\"']?\$\(\s*cat\b|>\s*\S{1,200}\.(?:sh|slurm|sbatch)\b"
)
"""In the line of a document that a shell reads, a variable holds, or a script of its own."""


def _without_documents(text: str) -> str:
    """The text without what is given to programs as their input, unless a shell reads it; lines stay."""

    def emptied(match: re.Match[str]) -> str:
        if _READ_AS_SCRIPT.search(match.group()[: match.start("body") - match.start()]):
            return match.group()[: match.end("body") - match.start()]
        start = match.start("body") - match.start()
        return match.group()[:start] + "\n" * match["body"].count("\n")

    return _DOCUMENT.sub(emptied, text) if "<<" in text else text


def _as_word(listed: re.Match[str]) -> str:
    joined, lines = re.subn(r"\\\r?\n", "", listed[0])
    return " " if joined == "," else shlex.quote(json.loads(joined, strict=False)) + "\\\n" * lines


def unquoted(piece: str) -> str:
    """A word without its quotes and backslashes."""
    return re.sub(r"""\\\r?\n|\\(.)|'([^']*)'|["'](?!$)|["']$""", _unquoted, piece, flags=re.DOTALL)


def _unquoted(match: re.Match[str]) -> str:
    return match.group(1) or match.group(2) or ""


def commands_of(words: Iterator[Word]) -> Iterator[list[Word]]:
    """The words command by command, without the patterns of a `case`."""
    command: list[Word] = []
    piped: list[list[Word]] = []
    """Commands before a `|`, which may be alternatives of a pattern."""
    for word in words:
        if word.text is not None:
            command.append(word)
            continue
        if command and word.written != ")":
            piped.append(command)
        command = []
        if word.written == ")":
            piped = []
        elif word.written != "|":
            yield from piped
            piped = []
