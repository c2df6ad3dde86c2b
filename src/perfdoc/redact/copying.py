"""Writing shareable copies: under a temporary name, held against the original, then moved into place."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_trace
from perfdoc.profiling.whole_file import made, may_write, move_into_place, scratch, undisturbed
from perfdoc.records import dataclass
from perfdoc.redact.kineto import copy_kineto
from perfdoc.redact.nsys import Copied, copy_nsys
from perfdoc.redact.texts import Names
from perfdoc.results.ranks import Ledger
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.formats import format_of
from perfdoc.traces.load import read_trace
from perfdoc.traces.summary_file import is_summary


@dataclass(frozen=True, kw_only=True)
class _Copier:
    """How a format is copied."""

    write: Callable[[Path, Path, Names], Copied]
    """From the one to the other, which is not there yet."""
    suffix: str
    """Of the copies of several captures."""
    others: tuple[str, ...]
    """Ends of names that say another format."""


_COPIERS: Mapping[str, _Copier] = MappingProxyType(
    {
        "nsys-sqlite": _Copier(write=copy_nsys, suffix=".sqlite", others=(".json", ".gz")),
        "kineto": _Copier(write=copy_kineto, suffix=".json.gz", others=(".sqlite",)),
    }
)
"""By names of traces/formats.py; of other formats no copy is made."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One copy that was written."""

    path: Path
    copied: Copied
    ranks: int | None
    """Whose ledgers were found to be the original's to the nanosecond; None where that was not asked for."""


def redact(
    captures: Sequence[Path], output: Path, *, keep: re.Pattern[str] | None, force: bool, verify: bool
) -> list[Copy]:
    """Copy captures; words get the same numbers in all of them.

    output: the copy's name for one capture, a folder for several, which are called capture0 and so on, since
    profilers put the host's name into their files'. keep: names of ranges that stay as they are. verify:
    whether each copy's ledgers are held against the original's; where they differ nothing is written.
    Raises TraceError and OSError.
    """
    if len(captures) > 1 and any(c.resolve().parent == output.resolve() for c in captures):
        raise TraceError(
            output, "holds the captures; copies would mix with them.", "Give -o a folder of its own."
        )
    targets = _targets(captures, output)
    for source, target in zip(captures, targets, strict=True):
        _require_free(source, target, captures, force=force)
    names = Names(keep)
    staged: list[tuple[Path, Copy]] = []
    with ExitStack() as undo:
        if len(captures) > 1:
            undo.enter_context(made(output))
        # Where a link leads to; the link stays.
        real = Path(os.path.realpath(targets[0]))
        may_write(real)
        folder = undo.enter_context(scratch(real.parent))
        for number, (source, target) in enumerate(zip(captures, targets, strict=True)):
            temporary = folder / f"{number}{target.suffix}"
            try:
                copied = _copier(source).write(source, temporary, names)
            except sqlite3.Error as error:
                what = f"cannot be written: {error}."
                raise TraceError(target, what, "Is there room on the disk?") from error
            ranks = _require_same(source, temporary) if verify else None
            staged.append((temporary, Copy(path=target, copied=copied, ranks=ranks)))
        with undisturbed():
            for temporary, copy in staged:
                move_into_place(temporary, copy.path, replace=True)
    return [copy for _, copy in staged]


def _targets(captures: Sequence[Path], output: Path) -> list[Path]:
    if len(captures) == 1:
        return [output]
    return [output / f"capture{i}{_copier(c).suffix}" for i, c in enumerate(captures)]


def _require_free(source: Path, target: Path, captures: Sequence[Path], *, force: bool) -> None:
    if any(target.resolve() == c.resolve() or (target.exists() and target.samefile(c)) for c in captures):
        raise TraceError(target, "is the capture itself; captures are never changed.", "Choose another -o.")
    if target.is_dir():
        raise TraceError(target, "is a folder.", "Give -o the name of a file.")
    if target.exists() and not target.is_file():
        raise TraceError(target, "is a pipe or a device.", "Give -o the name of a file.")
    if target.suffix in _copier(source).others:
        what = f"is not a name for a copy of {source.name}, whose format it keeps."
        raise TraceError(target, what, "Give -o a name that ends as the capture's does.")
    if target.exists() and not force:
        raise TraceError(target, "is there already.", "Choose another -o, or overwrite with --force.")


def _copier(source: Path) -> _Copier:
    """Raises TraceError where no copy is made of such files."""
    if is_summary(source):
        raise TraceError(
            source, "is a summary, of which no copy is made.", "Redact the trace, and summarize that."
        )
    of = format_of(source)
    if of.name in ("nsys-rep", "nsys-parquet"):
        raise TraceError(
            source, "is no SQLite export.", "Export it first: nsys export --type sqlite REPORT.nsys-rep"
        )
    if of.name not in _COPIERS:
        raise TraceError(source, f"is a trace of {of.tool}, of which no copy is made.", "Share it as it is.")
    return _COPIERS[of.name]


def _require_same(source: Path, copy: Path) -> int:
    """The number of ranks whose ledgers are alike. Raises TraceError where they are not."""
    one, two = _ledgers(source), _ledgers(copy)
    if one != two:
        raise TraceError(
            source,
            "would have another ledger after the copy: a replaced name has a meaning.",
            "Keep such names with --keep REGEX, or copy anyway with --no-verify.",
        )
    return len(one)


def _ledgers(path: Path) -> list[Ledger]:
    try:
        return [r.ledger for r in measure_trace(read_trace(path), WindowRequest())[0]]
    except NoGpuActivityError:
        return []
