"""`--cross-check`: Nsight's own figures of a capture beside perfdoc's, and how a terminal shows them.

Whole captures are compared, whatever window was analysed, because Nsight's reports have no other.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from perfdoc import __version__
from perfdoc.nsight.figures import Key
from perfdoc.nsight.sources import SOURCES, Ours, Rows, Source, Table
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys.command import Nsys, export_sqlite
from perfdoc.profiling.nsys.figures import Command, read_nsys_table, run_recipe
from perfdoc.reports.grid import grid
from perfdoc.results.figures import plural
from perfdoc.results.names import base_name, prose, shorten
from perfdoc.traces import TraceError
from perfdoc.traces.load import NSYS, read_trace, tool_of

Verdict: TypeAlias = Literal["agree", "differs", "cannot compare"]

SCHEMA_VERSION = 1
MAX_FIGURES = 1000
"""Figures of one source that are kept, those that differ first; the counts cover all."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure of both."""

    source: str
    """Nsight's report, rule or recipe."""
    name: str
    """Of the range, kernel or device; empty where a whole source cannot be compared."""
    detail: str
    """What tells subjects of one name apart: the style of a range, the process of a device."""
    figure: str
    """`count`, `total_ns`, ...; docs/nsight.md lists them. Empty as for `name`."""
    theirs: int | float | None
    """None where Nsight lists no such subject."""
    ours: int | float | None
    difference: int | float | None
    """ours - theirs."""
    verdict: Verdict
    reason: str


@dataclass(frozen=True, kw_only=True)
class SourceSummary:
    """All figures of one source, also those that are not kept."""

    source: str
    subject: str
    subjects: int
    agree: int
    differ: int
    cannot_compare: str
    """Why there is no comparison; empty where there is one."""


@dataclass(frozen=True, kw_only=True)
class CaptureCrossCheck:
    """One capture."""

    path: str
    sources: Sequence[SourceSummary]
    figures: Sequence[Comparison]
    """Per source those that differ, then those that agree, up to MAX_FIGURES."""
    left_out: int


@dataclass(frozen=True, kw_only=True)
class CrossCheck:
    """What `cross_check.json` holds."""

    schema_version: int
    perfdoc_version: str
    nsys: str
    captures: Sequence[CaptureCrossCheck]


def cross_check(
    nsys: Nsys, captures: Sequence[Path], tell: Callable[[str], None] = lambda what: None
) -> CrossCheck:
    """Hold perfdoc's figures of whole captures against those of an installed nsys.

    What cannot be compared is said in the result; nothing is raised for it. The captures and their folders
    are left as they are. tell: called with what is asked of nsys next, which may take minutes.
    """
    return CrossCheck(
        schema_version=SCHEMA_VERSION,
        perfdoc_version=__version__,
        nsys=nsys.label,
        captures=[check_capture(nsys, capture, tell) for capture in captures],
    )


def check_capture(
    nsys: Nsys, capture: Path, tell: Callable[[str], None] = lambda what: None
) -> CaptureCrossCheck:
    """One capture; see cross_check."""
    try:
        with _as_sqlite(nsys, capture) as sqlite:
            ours = Ours(read_trace(sqlite))
            results = []
            for source in SOURCES:
                tell(f"{source.name} of {capture.name}")
                results.append(_check_source(nsys, source, sqlite, _report_of(capture), ours))
    except (TraceError, CaptureError, OSError) as error:
        why = str(error) if isinstance(error, OSError) else f"{error.what} {error.remedy}".strip()
        results = [_not_compared(source, why) for source in SOURCES]
    kept = [figure for _, figures in results for figure in figures[:MAX_FIGURES]]
    return CaptureCrossCheck(
        path=str(capture),
        sources=[summary for summary, _ in results],
        figures=kept,
        left_out=sum(len(figures) for _, figures in results) - len(kept),
    )


def compare(source: Source, theirs: Table, ours: Table) -> list[Comparison]:
    """Every figure of every subject that either of them lists: those that differ first, then by name."""
    found = []
    for key in sorted({**theirs, **ours}):
        left, right = theirs.get(key, {}), ours.get(key, {})
        for figure in {**left, **right}:
            found.append(_compared(source, key, figure, left.get(figure), right.get(figure)))
    return sorted(found, key=lambda c: c.verdict == "agree")


def _compared(
    source: Source, key: Key, figure: str, theirs: int | float | None, ours: int | float | None
) -> Comparison:
    difference = None if theirs is None or ours is None else ours - theirs
    # The margin is for the binary form of decimals such as 39.15.
    agree = difference is not None and abs(difference) <= source.tolerance * (1 + 1e-9)
    reason = ""
    if difference is None:
        reason = "only perfdoc lists it" if theirs is None else "only Nsight lists it"
    return Comparison(
        source=source.name,
        name=key[0],
        detail=key[1],
        figure=figure,
        theirs=theirs,
        ours=ours,
        difference=difference,
        verdict="agree" if agree else "differs",
        reason=reason,
    )


def _check_source(
    nsys: Nsys, source: Source, sqlite: Path, report: Path | None, ours: Ours
) -> tuple[SourceSummary, list[Comparison]]:
    if source.kind == "recipe":
        if report is None:
            return _not_compared(source, "Nsight's recipes read .nsys-rep files, and there is none beside")
        answer = run_recipe(nsys.path, report, source.ask, source.file)
    else:
        command: Command = "analyze" if source.kind == "rule" else "stats"
        answer = read_nsys_table(nsys.path, sqlite, source.ask, command=command)
    if answer.missing:
        return _not_compared(source, answer.missing)
    try:
        theirs = source.theirs(answer.rows, ours)
    except ValueError as error:
        return _not_compared(source, f"unexpected output of nsys: {error}")
    mine = source.ours(ours)
    figures = [_explained(figure, source, answer.rows, ours) for figure in compare(source, theirs, mine)]
    verdicts = Counter(figure.verdict for figure in figures)
    summary = SourceSummary(
        source=source.name,
        subject=source.subject,
        subjects=len({**theirs, **mine}),
        agree=verdicts["agree"],
        differ=verdicts["differs"],
        cannot_compare="",
    )
    return summary, figures


def _explained(figure: Comparison, source: Source, rows: Rows, ours: Ours) -> Comparison:
    if figure.difference is None or figure.theirs is None or figure.verdict == "agree":
        return figure
    key = (figure.name, figure.detail)
    return replace(figure, reason=ours.why(source.name, key, figure.figure, figure.theirs, rows))


def _not_compared(source: Source, reason: str) -> tuple[SourceSummary, list[Comparison]]:
    summary = SourceSummary(
        source=source.name, subject=source.subject, subjects=0, agree=0, differ=0, cannot_compare=reason
    )
    row = Comparison(
        source=source.name,
        name="",
        detail="",
        figure="",
        theirs=None,
        ours=None,
        difference=None,
        verdict="cannot compare",
        reason=reason,
    )
    return summary, [row]


@contextmanager
def _as_sqlite(nsys: Nsys, capture: Path) -> Iterator[Path]:
    """The capture as an export that both read. Raises TraceError and CaptureError."""
    if capture.suffix == ".nsys-rep":
        with tempfile.TemporaryDirectory(prefix="perfdoc-nsys-") as folder:
            yield export_sqlite(nsys.path, capture, Path(folder) / "capture.sqlite")
    elif capture.is_dir() or tool_of(capture) != NSYS:
        raise CaptureError(
            capture, "is neither a .sqlite export nor a .nsys-rep.", "nsys stats reads only those."
        )
    else:
        yield capture


def _report_of(capture: Path) -> Path | None:
    """The report behind a capture: itself, or the one of its name beside it, as `perfdoc run` leaves it."""
    report = capture.with_suffix(".nsys-rep")
    return report if report.is_file() else None


_SHOWN = 20
"""Differences of one source that are shown; cross_check.json has more."""
_WIDTH = 110


def render_cross_check(check: CrossCheck) -> str:
    """Per capture one line for each source, then what differs. Ends with a line break."""
    lines = ["", f"Cross-check with {shorten(check.nsys)}, whole captures"]
    for capture in check.captures:
        lines += ["", f"  {base_name(capture.path)}"]
        reasons = {source.cannot_compare for source in capture.sources}
        if len(reasons) == 1 and "" not in reasons:
            lines.append(f"    cannot compare: {prose(reasons.pop(), 300)}")
            continue
        lines += [f"    {_summary(source)}" for source in capture.sources]
        for source in capture.sources:
            lines += _differences(capture, source)
    return "\n".join(lines) + "\n"


def _summary(source: SourceSummary) -> str:
    name = f"{source.source:<24}"
    if source.cannot_compare:
        return f"{name}cannot compare: {prose(source.cannot_compare, 300)}"
    if not source.subjects:
        return f"{name}agree: neither lists any"
    what = f"{source.agree + source.differ:,} figures of {plural(source.subjects, source.subject)}"
    if not source.differ:
        return f"{name}agree: {what}"
    return f"{name}differs: {source.differ:,} of {what}"


def _differences(capture: CaptureCrossCheck, source: SourceSummary) -> Iterator[str]:
    if not source.differ:
        return
    rows = [f for f in capture.figures if f.source == source.source and f.verdict == "differs"]
    yield ""
    head = (source.source, "figure", "Nsight", "perfdoc", "difference")
    table = [
        (_subject(f), f.figure, _number(f.theirs), _number(f.ours), _number(f.difference, sign=True))
        for f in rows[:_SHOWN]
    ]
    yield from (f"    {line}" for line in grid(head, table, align="llrrr", width=_WIDTH))
    if source.differ > len(table):
        yield f"    and {source.differ - len(table):,} more"
    for reason in dict.fromkeys(f.reason for f in rows if f.reason):
        yield f"    {prose(reason, 300)}"


def _subject(figure: Comparison) -> str:
    return shorten(f"{figure.name} ({figure.detail})" if figure.detail else figure.name, 64)


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "—"
    mark = "+" if sign else ""
    return f"{value:{mark},}" if isinstance(value, int) else f"{value:{mark},.1f}"
