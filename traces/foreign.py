"""What is no trace that perfdoc reads, told by its content: what it is, and how to get one that is.

Public reports attach archives, web pages and pointers in place of traces, and other profilers write SQLite
and JSON too. Whoever gives such a file learns what it is, and not that it is damaged. The tables are in
foreign.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from perfdoc.kept import table
from perfdoc.patterns import pattern_of

HEAD_BYTES = 512
"""Of a file that are looked at: a tar archive names itself at byte 257."""

_LOOKED_AT = 64
"""Files of a folder."""

_FOREIGN = SimpleNamespace(**table(Path(__file__).resolve().with_name("foreign.yaml")))


def what_is(head: bytes, suffix: str) -> tuple[str, str] | None:
    """What a file is that begins so, and the remedy; None where it is not known."""
    told = _told(_FOREIGN.magic, lambda form: pattern_of(b"(?is)" + form.encode()).match(head))
    return told or _told(_FOREIGN.suffixes, suffix.__eq__)


def packed_in(folder: Path) -> tuple[str, str] | None:
    """Which archive or report of another tool a folder holds, and the remedy; None where there is none."""
    unpack, ends = _FOREIGN.remedies["unpack"], [end for end, *_ in _FOREIGN.suffixes]
    for file in sorted(folder.iterdir())[:_LOOKED_AT]:
        with suppress(OSError):
            head = b""
            judged = file.name.endswith((".json.gz", *ends))  # a trace would have been taken for one
            if not judged and file.is_file():
                with file.open("rb") as opened:
                    head = opened.read(HEAD_BYTES)
            told = what_is(head, file.suffix)
            if told is not None and (told[1] == unpack or file.suffix in ends):
                return f"{file.name} in it {told[0]}", told[1]
    return None


def _told(rows: Sequence[tuple[str, str, str]], shows: Callable[[str], object]) -> tuple[str, str] | None:
    """(what it is, the remedy) of the first form that shows; None where none does."""
    found = ((what, _FOREIGN.remedies.get(remedy, remedy)) for form, what, remedy in rows if shows(form))
    return next(found, None)


def database_of(tables: Iterable[str]) -> tuple[str, str] | None:
    """Which profiler wrote a SQLite file with these tables, and the remedy; None where it is not known."""
    names = list(tables)
    return _told(_FOREIGN.databases, lambda form: any(pattern_of(form).match(name) for name in names))


def document_of(text: bytes) -> tuple[str, str] | None:
    """What a JSON file without trace events is that begins so, and the remedy; None where it is not known."""
    return _told(_FOREIGN.documents, lambda form: pattern_of(form.encode()).search(text))


def list_of(text: bytes, *, events: bool) -> tuple[str, str] | None:
    """What JSON without GPU rows is that begins so, and the remedy; None where it is not known. events: what
    has some may have them behind this text."""
    rows = _FOREIGN.lists[: -1 if events else None]
    return _told(rows, lambda form: pattern_of(form.encode()).match(text))


NAMES_KERNELS = ("ONNX Runtime",)
"""Whose kernels look like PyTorch's, without calls or devices."""


def writer_of(named: Iterable[str]) -> tuple[str, str] | None:
    """Whose trace it is by names of processes and categories, and the remedy; None where it may be
    PyTorch's."""
    names = list(named)
    return _told(_FOREIGN.processes, lambda form: any(pattern_of(form).search(name) for name in names))
