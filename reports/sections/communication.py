"""Communication by kind: how much of it compute hides, at what bandwidth; and rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from perfdoc.records import dataclass
from perfdoc.reports.over_ranks import frac, mean_words
from perfdoc.reports.sections.section import (
    Cell,
    Grid,
    Section,
    Stretch,
    count,
    grid_of,
    name,
    rate,
    size,
    time,
    word,
)
from perfdoc.reports.summary import drawn_ranks, rank_labels
from perfdoc.results import DIMENSIONS, Communication, Diagnosis, figures
from perfdoc.results.degrees import Degree
from perfdoc.results.headline import Job
from perfdoc.results.names import prose, shorten

_OVERALL_ROWS = 200
_PER_RANK_ROWS = 400
_NOT_MEASURED = "not measured for these rows"
"""Said of a cell without a figure where no capability of the capture is missing."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One kind of communication, of one rank or of several. Times are sums of each rank's union."""

    ranks: str
    """Label of the rank, or how many ranks were added up."""
    kind: Communication
    """Any of those that were added up."""
    groups: int
    count: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    blocking_ns: int | None
    bytes: int | None
    slowest_gbps: float | None
    fastest_gbps: float | None


def build(diagnosis: Diagnosis) -> Section | None:
    """None without ranks."""
    ranks = diagnosis.ranks
    if not ranks:
        return None
    overall = _rows_of_kinds(diagnosis)
    if not overall:
        return Section(
            key="communication", title="Communication", sentences=["No communication inside the windows."]
        )
    layout = layout_grid(diagnosis.job)
    most = max(overall, key=lambda row: row.exposed_ns)
    what, dimension = (shorten(text, 48) for text in (most.kind.collective, most.kind.dimension))
    kind = f"{what} of unknown dimension" if dimension == "unknown" else f"{dimension.upper()} {what}"
    exposed = figures.share(frac(most.exposed_ns, most.total_ns))
    of_ranks = "ranks and groups" if len(ranks) > 1 else "groups"
    return Section(
        key="communication",
        title="Communication",
        sentences=[
            f"Most exposed: {kind}, {mean_words(most.exposed_ns, ranks)} ({exposed} of its time). Rows are "
            f"sums over {of_ranks}, which may overlap; hidden + exposed = total.",
            *_unknown(diagnosis, overall),
        ],
        grids=[g for g in (_overall(overall, many=len(ranks) > 1), layout, _by_rank(diagnosis)) if g],
    )


def _unknown(diagnosis: Diagnosis, rows: Sequence[_Row]) -> Iterator[str]:
    if any(row.blocking_ns is None for row in rows):
        yield f"blocking {figures.UNKNOWN}: {_missing_reason(diagnosis, 'event_edges')}"
    if any(row.bytes is None for row in rows):
        yield f"bytes {figures.UNKNOWN}: {_missing_reason(diagnosis, 'collective_payloads')}"


def _missing_reason(diagnosis: Diagnosis, capability: str) -> str:
    """Why a capability is missing, from the first input that lacks it."""
    lacking = (row for row in diagnosis.capabilities if row.name == capability and not row.available)
    return next((prose(row.reason) for row in lacking), _NOT_MEASURED)


def _sum_known(values: Sequence[int | None]) -> int | None:
    """None where a part of it is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _add_up(ranks: str, rows: Sequence[Communication]) -> _Row:
    rates = [row.bus_bandwidth_gbps for row in rows if row.bus_bandwidth_gbps is not None]
    return _Row(
        ranks=ranks,
        kind=rows[0],
        groups=len({row.group for row in rows}),
        count=sum(row.count for row in rows),
        total_ns=sum(row.total_ns for row in rows),
        hidden_ns=sum(row.hidden_ns for row in rows),
        exposed_ns=sum(row.exposed_ns for row in rows),
        blocking_ns=_sum_known([row.blocking_ns for row in rows]),
        bytes=_sum_known([row.bytes for row in rows]),
        slowest_gbps=min(rates, default=None),
        fastest_gbps=max(rates, default=None),
    )


def _most_exposed_first(rows: Sequence[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: (-row.exposed_ns, -row.total_ns))


def _rows_of_kinds(diagnosis: Diagnosis) -> list[_Row]:
    """One row per kind of communication over all ranks and groups."""
    kinds: dict[tuple[str, ...], list[tuple[int, Communication]]] = {}
    for i, rank in enumerate(diagnosis.ranks):
        for row in rank.communication:
            key = (row.dimension, row.transport, row.collective, row.element_type, row.evidence)
            kinds.setdefault(key, []).append((i, row))
    return _most_exposed_first(
        [_add_up(str(len({i for i, _ in of})), [row for _, row in of]) for of in kinds.values()]
    )


def _overall(rows: Sequence[_Row], *, many: bool) -> Grid:
    grid = grid_of(
        rows,
        ("dimension", "l", lambda row: name(row.kind.dimension, 48)),
        ("transport", "l", lambda row: name(row.kind.transport, 48)),
        ("collective", "l", lambda row: word(_collective(row))),
        *([("ranks", "r", lambda row: word(row.ranks))] if many else []),
        *_FIGURES,
        ("evidence", "l", lambda row: name(row.kind.evidence, 64)),
        most=_OVERALL_ROWS,
        key="comm",
    )
    return replace(grid, drawn=[_bar(row) for row in rows[:_OVERALL_ROWS]])


def _by_rank(diagnosis: Diagnosis) -> Grid:
    """Each drawn rank's own rows, in the order of the ranks."""
    labels = rank_labels(diagnosis.ranks)
    drawn = drawn_ranks(diagnosis.ranks, diagnosis.analyses.roles)
    rows = [
        row
        for i in drawn
        for row in _most_exposed_first(
            [_add_up(labels[i], [each]) for each in diagnosis.ranks[i].communication]
        )
    ]
    undrawn = len(labels) - len(drawn)
    of = f"; {figures.plural(undrawn, 'rank')} not listed" if undrawn else ""
    return grid_of(
        rows,
        ("dimension", "l", lambda row: name(row.kind.dimension, 48)),
        ("transport", "l", lambda row: name(row.kind.transport, 48)),
        ("collective", "l", lambda row: word(_collective(row))),
        ("rank", "l", lambda row: word(row.ranks)),
        *_FIGURES,
        ("group", "n", lambda row: name(row.kind.group, 72)),
        caption=f"By rank and group ({figures.plural(len(rows), 'row')}{of})",
        most=_PER_RANK_ROWS,
        key="comm-ranks",
        folded=True,
    )


_FIGURES: tuple[tuple[str, str, Callable[[_Row], Cell]], ...] = (
    ("count", "r", lambda row: count(row.count)),
    ("total", "r", lambda row: time(row.total_ns)),
    ("hidden", "r", lambda row: time(row.hidden_ns)),
    ("exposed", "r", lambda row: time(row.exposed_ns)),
    ("blocking", "r", lambda row: time(row.blocking_ns)),
    ("bytes", "r", lambda row: size(row.bytes)),
    ("bus bandwidth", "r", lambda row: _bandwidth(row)),
)


def _collective(row: _Row) -> str:
    """With the element type where it is known."""
    return shorten(f"{row.kind.collective} {row.kind.element_type}".rstrip(), 64)


def _bandwidth(row: _Row) -> Cell:
    low, high = figures.bandwidth(row.slowest_gbps), figures.bandwidth(row.fastest_gbps)
    return rate(row.fastest_gbps) if low == high else word(f"{low.removesuffix(' GB/s')} to {high}")


def _bar(row: _Row) -> list[Stretch]:
    """What compute hides, then the rest."""
    if row.total_ns <= 0:
        return []
    dimension = row.kind.dimension if row.kind.dimension in DIMENSIONS else "unknown"
    hidden, exposed = 100 * row.hidden_ns / row.total_ns, 100 * row.exposed_ns / row.total_ns
    said = f"{figures.share(row.exposed_ns / row.total_ns)} exposed"
    return [
        Stretch(start=0, width=hidden, css="mini-hidden", title=said),
        Stretch(start=hidden, width=exposed, css=f"s-exposed-comm-{dimension}", title=said),
    ]


def layout_grid(job: Job | None) -> Grid | None:
    """How the job is spread over its ranks, each degree with what shows it; None where nothing is known."""
    rows = [d for d in job.degrees if d.evidence or d.contradicted_by] if job is not None else []
    if not rows:
        return None
    return grid_of(
        rows,
        ("layout", "l", lambda row: word("ranks" if row.name == "world_size" else row.name)),
        ("ranks", "r", lambda row: word(figures.UNKNOWN if row.ranks is None else f"{row.ranks:,}")),
        ("known by", "l", lambda row: word(row.strength)),
        ("what shows it", "n", lambda row: name(_shown(row), 160)),
        caption="The layout of the job",
        key="layout",
    )


def _shown(row: Degree) -> str:
    against = [f"against it: {text}" for text in row.contradicted_by]
    return "; ".join([*row.evidence[:2], *against])
