"""The table of the user's own ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, time
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import prose, shorten
from perfdoc.results.ranks import Ledger
from perfdoc.results.tables import RangeRow, RangeTable

_ROWS = 64
_INDENT = "\N{MIDDLE DOT} "
_KINDS = {"others": "other ranges", "outside": "outside of all ranges"}


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing where no range was asked for; one that was asked for and not found is said."""
    tables = diagnosis.tables
    if tables is None or not tables.ranges.patterns:
        return None
    ranges = tables.ranges
    if ranges.state != "measured":
        why = f"Not measured: {prose(ranges.reason, 160)}." + (f" {ranges.remedy}" if ranges.remedy else "")
        return Section(key="ranges", title="Your ranges", sentences=[why])
    rows = _over_ranks(ranges.rows)
    several = len({row.rank for row in ranges.rows}) > 1
    grid = Grid(
        caption="GPU time by range, inner ranges included; own: without them",
        head=[
            *("range", "count", "on host", "share", "window", "own", "compute", "exposed comm."),
            *("exposed copies", "idle", "kernels", "MFU"),
        ],
        align="n" + "r" * 11,
        rows=[_cells(row) for row in rows[:_ROWS]],
        left_out=max(0, len(rows) - _ROWS),
    )
    return Section(
        key="ranges", title="Your ranges", sentences=list(_sentences(ranges, rows, several)), grids=[grid]
    )


def _sentences(ranges: RangeTable, rows: Sequence[RangeRow], several: bool) -> Iterator[str]:
    patterns = ", ".join(f"`{shorten(p, 64)}`" for p in ranges.patterns[:4])
    total = sum(row.own.total for row in rows)
    outside = sum(row.own.total for row in rows if row.kind == "outside")
    over = ", all ranks together" if several else ""
    yield (
        f"{figures.duration(total)} of window by the range that work was launched in ({patterns}{over}); "
        f"outside of them: {figures.share(outside / total if total else None)}."
    )
    own = [row for row in rows if row.kind == "range" and row.own.exposed_comm.total]
    if own:
        most = max(own, key=lambda row: row.own.exposed_comm.total)
        yield (
            f"Most exposed communication is launched in `{shorten(most.path[-1], 64)}`: "
            f"{figures.duration(most.own.exposed_comm.total)}."
        )
    if ranges.mfu_reason:
        yield f"No range has an MFU: {prose(ranges.mfu_reason, 160)}."
    if ranges.reason:
        yield f"Some ranks are left out: {prose(ranges.reason, 160)}."


def _over_ranks(rows: Sequence[RangeRow]) -> list[RangeRow]:
    """Rows of one path together, in the order of the first rank that has them; a share is of all windows."""
    window = sum(row.own.total for row in rows)
    found: dict[tuple[str, ...], RangeRow] = {}
    for row in rows:
        key = (row.kind, *row.path)
        found[key] = _sum(found[key], row) if key in found else row
    shared = [replace(row, share_frac=row.whole.total / window if window else None) for row in found.values()]
    return _outer_first(shared)


def _outer_first(rows: Sequence[RangeRow]) -> list[RangeRow]:
    """Each behind the one around it: another rank may have added some."""
    inside: dict[tuple[str, ...], list[RangeRow]] = {}
    for row in rows:
        if row.kind == "range":
            inside.setdefault(tuple(row.path[:-1]), []).append(row)
    ordered: list[RangeRow] = []
    pending = inside.get((), [])[::-1]
    while pending:
        row = pending.pop()
        ordered.append(row)
        pending += inside.get(tuple(row.path), [])[::-1]
    return [*ordered, *(row for row in rows if row.kind != "range")]


def _sum(one: RangeRow, other: RangeRow) -> RangeRow:
    known = [row.mfu for row in (one, other) if row.mfu is not None]
    return replace(
        one,
        count=one.count + other.count,
        host_ns=one.host_ns + other.host_ns,
        own=_added(one.own, other.own),
        whole=_added(one.whole, other.whole),
        kernels=one.kernels + other.kernels,
        kernel_ns=one.kernel_ns + other.kernel_ns,
        # Both do the same FLOPs, so that the harmonic mean by time is the plain one of their inverses.
        mfu=2 / sum(1 / m for m in known) if len(known) == 2 and all(known) else None,
    )


def _added(one: Ledger, other: Ledger) -> Ledger:
    return Ledger(
        compute=one.compute + other.compute,
        exposed_comm=replace(
            one.exposed_comm,
            **{d: ns + other.exposed_comm.by_name[d] for d, ns in one.exposed_comm.by_name.items()},
        ),
        exposed_memcpy=one.exposed_memcpy + other.exposed_memcpy,
        idle=replace(one.idle, **{c: ns + other.idle.by_name[c] for c, ns in one.idle.by_name.items()}),
    )


def _cells(row: RangeRow) -> list[Cell]:
    if row.kind == "range":
        title = Cell(text=_INDENT * (len(row.path) - 1) + name(row.path[-1], 64).text)
    else:
        title = Cell(text=_KINDS[row.kind])
    whole = row.whole
    return [
        title,
        count(row.count),
        time(row.host_ns),
        share(row.share_frac),
        time(whole.total),
        time(row.own.total),
        time(whole.compute),
        time(whole.exposed_comm.total),
        time(whole.exposed_memcpy),
        time(whole.idle.total),
        count(row.kernels),
        share(row.mfu),
    ]
