"""What the hosts did while devices idled, and which calls, kernels and pauses delayed launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median_low

from perfdoc.records import dataclass
from perfdoc.reports.over_ranks import Total, devices_of, frac, mean_words, total_of, windows_ns, worst_of
from perfdoc.reports.sections.section import Cell, Grid, Section, count, name, share, time, word
from perfdoc.results import Diagnosis, Rank, figures
from perfdoc.results.host import CallGroup, HostPauses, HostSplit
from perfdoc.results.names import shorten

_WORTH_A_TABLE = 0.005
"""Share of the windows. Less idle time than this is not divided by cause."""

_SPLIT: tuple[tuple[str, Callable[[HostSplit], int | None]], ...] = (
    ("in the program or its framework, outside CUDA calls", lambda split: _python_ns(split)),
    ("waiting for something else, off the CPU", lambda split: split.waiting_ns),
    ("between steps, without a CUDA call", lambda split: split.between_steps_ns),
    ("in long pauses without a CUDA call", lambda split: split.pausing_ns),
    ("blocked in a synchronising call", lambda split: split.synchronising_ns),
    ("allocating or freeing memory", lambda split: split.allocation_ns),
    ("loading CUDA modules", lambda split: split.module_load_ns),
    ("launching", lambda split: split.launch_ns),
    ("in stream-ordered allocation", lambda split: split.stream_allocation_ns),
    ("in another CUDA call", lambda split: split.other_call_ns),
)


def _python_ns(split: HostSplit) -> int | None:
    """Outside CUDA calls, less what is known better."""
    if split.python_ns is None:
        return None
    known = (split.waiting_ns, split.between_steps_ns, split.pausing_ns)
    return split.python_ns - sum(ns or 0 for ns in known)


def build(diagnosis: Diagnosis) -> Section | None:
    """Nothing where no rank shows its host, or where no figure of it is above zero."""
    ranks = [rank for rank in diagnosis.ranks if rank.host.state == "measured"]
    window = windows_ns(ranks)
    causes = _causes(ranks)
    idle_ns = sum(total.sum_ns for _, total in causes)
    worth = window > 0 and idle_ns >= _WORTH_A_TABLE * window
    grids = (
        (_did(causes if len(causes) > 1 else (), window), _held_up(ranks), _costly_calls(ranks))
        if worth
        else ()
    )
    sentences = [*_late(ranks, causes), *_jitter(diagnosis), *_depth(ranks), *_graphs(ranks)]
    if not sentences:
        return None
    return Section(
        key="host", title="The host", sentences=sentences, grids=[grid for grid in grids if grid.rows]
    )


def _split(rank: Rank, part: Callable[[HostSplit], int | None]) -> int | None:
    return part(rank.host.idle_split) if rank.host.idle_split.state == "measured" else None


def _causes(ranks: Sequence[Rank]) -> list[tuple[str, Total]]:
    """Time in which devices waited for their hosts, the longest first: idle.host, gc and data."""
    rows = [(words, total_of(ranks, partial(_split, part=part))) for words, part in _SPLIT]
    rows += [
        ("in garbage collection", total_of(ranks, lambda rank: rank.host.gc.idle_ns)),
        ("waiting for data", total_of(ranks, _data_ns)),
        ("likely waiting for data", total_of(ranks, lambda rank: rank.host.data.idle_position_ns)),
    ]
    return sorted((row for row in rows if row[1].sum_ns), key=lambda row: -row[1].sum_ns)


def _data_ns(rank: Rank) -> int | None:
    """What is known to be a wait for data, by a range or by the thread's state."""
    data = rank.host.data
    return None if data.idle_ns is None else data.idle_ns - (data.idle_position_ns or 0)


def _late(ranks: Sequence[Rank], causes: Sequence[tuple[str, Total]]) -> Iterator[str]:
    """How long devices waited for their hosts, and what for."""
    queued = [rank for rank in ranks if rank.host.launch_queue.state == "measured"]
    if not queued:
        yield from _late_on_host(ranks, causes)
        return
    window = windows_ns(queued)
    total = total_of(queued, lambda rank: rank.host.launch_queue.starved_ns)
    part, length = figures.share(frac(total.sum_ns, window)), mean_words(total.sum_ns, queued)
    devices = devices_of(queued)
    if total.sum_ns < _WORTH_A_TABLE * window:
        yield f"Not limited by the host: {devices} waited for it {part} of the time ({length})."
        return
    said = (
        f"Waiting for the host {part} of the time ({length}{worst_of(total)}): {devices} idled until it "
        "launched the next kernel"
    )
    if len(causes) > 1:
        words, most = causes[0]
        of = figures.share(frac(most.sum_ns, sum(cause.sum_ns for _, cause in causes)))
        said += f"; for {of} of that the host was {words}"
    yield said + "."


def _late_on_host(ranks: Sequence[Rank], causes: Sequence[tuple[str, Total]]) -> Iterator[str]:
    """CPU ranks launch nothing; what is known of them is data loading and garbage collection."""
    if causes:
        total_ns, window = sum(total.sum_ns for _, total in causes), windows_ns(ranks)
        words = " or ".join(words for words, _ in causes)
        part = figures.share(frac(total_ns, window))
        more = worst_of(causes[0][1])
        yield f"The host was {words} {part} of the time ({mean_words(total_ns, ranks)}{more})."


def _depth(ranks: Sequence[Rank]) -> Iterator[str]:
    queues = [q for rank in ranks if (q := rank.host.launch_queue).state == "measured"]
    depths = sorted(q.median_depth for q in queues if q.median_depth is not None)
    shallow = sorted(q.shallow_frac for q in queues if q.shallow_frac is not None)
    if depths and shallow:
        middle = _span(figures.count(depths[0]), figures.count(depths[-1]))
        few = _span(figures.share(shallow[0]), figures.share(shallow[-1]))
        yield (
            f"Launch-queue depth: median {middle}, 0 or 1 for {few} of the time"
            + (" (lowest to highest rank)." if len(queues) > 1 else ".")
        )


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _graphs(ranks: Sequence[Rank]) -> Iterator[str]:
    known = [g for rank in ranks if (g := rank.host.graphs).state == "measured"]
    graph_ns = sum(g.graph_ns or 0 for g in known)
    if graph_ns:
        part = frac(graph_ns, sum(g.kernel_ns or 0 for g in known))
        yield f"{figures.share(part)} of kernel time is launched by CUDA graphs."


def _jitter(diagnosis: Diagnosis) -> Iterator[str]:
    jitter = diagnosis.analyses.host_jitter
    if jitter.state != "measured" or not jitter.median_spread_ns:
        return
    steps = jitter.common_steps or 0
    said = (
        f"Host jitter: {figures.duration(jitter.median_spread_ns)} between "
        f"{figures.plural(jitter.ranks or 0, 'rank')}, {figures.share(jitter.median_spread_frac)} of the "
        "host's own time of a step"
    )
    slow = next((rank for rank in jitter.slowest if rank.beyond_chance), None)
    said += " (one step)" if steps == 1 else f" (median of {steps:,} steps)"
    if slow is not None:
        of, lag = figures.share(slow.recurrence_frac), figures.duration(slow.median_lag_ns)
        said += f"; {shorten(slow.label, 64)} is slowest in {of} of them, by {lag}"
    elif jitter.noise_ns is None:
        said += "; too few steps to name a slow rank"
    else:
        said += (
            f"; one rank varies by {figures.duration(jitter.noise_ns)} from step to step; no rank is slow "
            "more often than by chance"
        )
    yield said + "."
    if jitter.gc.state == "measured" and jitter.gc.avoidable_ns:
        yield (
            f"Ranks collect garbage at different steps ({jitter.gc.split_steps or 0:,} of "
            f"{jitter.gc.collecting_steps or 0:,}): collecting at the same steps saves at most "
            f"{figures.duration(jitter.gc.avoidable_ns)}."
        )


def _did(causes: Sequence[tuple[str, Total]], window: int) -> Grid:
    many = any(total.worst for _, total in causes)
    return Grid(
        caption="What the host did while the device waited",
        head=["the host was", "idle time", "of the windows", *(["most on", "there"] if many else [])],
        align="lrr" + ("lr" if many else ""),
        rows=[
            [
                word(words),
                time(total.sum_ns),
                share(frac(total.sum_ns, window)),
                *([word(total.worst), time(total.worst_ns)] if many else []),
            ]
            for words, total in causes
        ],
    )


def _held_up(ranks: Sequence[Rank]) -> Grid:
    rows = [
        *_synchronising(ranks),
        *_small_kernels(ranks),
        *_allocations(ranks),
        *_pauses("garbage collection", [(rank.label, rank.host.gc) for rank in ranks]),
        *_pauses("data loading", [(rank.label, rank.host.data) for rank in ranks]),
    ]
    return Grid(
        caption="What delayed launches; idle times overlap, each is an upper bound of its gain",
        head=["what", "how often", "idle time", "detail"],
        align="lrrl",
        rows=sorted(rows, key=lambda row: -(row[2].ns or 0)),
    )


def _synchronising(ranks: Sequence[Rank]) -> Iterator[list[Cell]]:
    calls = [c for rank in ranks if (c := rank.host.sync_calls).state == "measured"]
    idle_ns = sum(c.idle_caused_ns or 0 for c in calls)
    if idle_ns:
        waited = figures.duration(sum(c.host_ns or 0 for c in calls))
        often = sum(c.count or 0 for c in calls)
        yield [word("synchronising calls"), count(often), time(idle_ns), Cell(text=f"{waited} inside them")]


def _small_kernels(ranks: Sequence[Rank]) -> Iterator[list[Cell]]:
    known = [s for rank in ranks if (s := rank.host.small_kernels).state == "measured"]
    idle_ns = sum(s.idle_before_ns or 0 for s in known)
    if not idle_ns:
        return
    gaps = [s.median_launch_interval_ns for s in known if s.median_launch_interval_ns is not None]
    said = f"{figures.duration(sum(s.small_ns or 0 for s in known))} of work"
    if gaps:
        said += f", one launch every {figures.duration(median_low(gaps))}"
    often = sum(s.small or 0 for s in known)
    yield [word("kernels shorter than their launch"), count(often), time(idle_ns), Cell(text=said)]


def _allocations(ranks: Sequence[Rank]) -> Iterator[list[Cell]]:
    calls = [c for rank in ranks if (c := rank.host.alloc_calls).state == "measured"]
    idle_ns = sum(c.idle_inside_ns or 0 for c in calls)
    if not idle_ns:
        return
    steps = [c for c in calls if c.steps]
    said = "whole window, no steps"
    if steps:
        inside, of = sum(c.steps_with_calls or 0 for c in steps), sum(c.steps or 0 for c in steps)
        last = sum(c.last_step_count or 0 for c in steps)
        said = f"in {inside:,} of {of:,} steps; {last:,} in the last"
    often = sum(c.count or 0 for c in calls)
    yield [word("allocation calls"), count(often), time(idle_ns), Cell(text=said)]


def _pauses(what: str, of: Sequence[tuple[str, HostPauses]]) -> Iterator[list[Cell]]:
    known = [(label, pause) for label, pause in of if pause.state == "measured"]
    idle_ns = sum(pause.idle_ns or 0 for _, pause in known)
    if not idle_ns:
        return
    label, worst = max(known, key=lambda row: row[1].worst_ns or 0)
    length = figures.duration(sum(pause.total_ns or 0 for _, pause in known))
    said = f"{length} in total; worst {figures.duration(worst.worst_ns)}"
    if len(known) > 1:
        said += f", {shorten(label, 48)}"
    if worst.worst_step:
        said += f", {shorten(worst.worst_step, 48)}"
    often = sum(pause.count or 0 for _, pause in known)
    yield [word(what), count(often), time(idle_ns), Cell(text=said)]


_CALLS = 6


@dataclass(kw_only=True)
class _Calls:
    """Groups of calls of one kind, function, range and operator, over ranks."""

    kind: str
    call: str
    where: str
    count: int = 0
    idle_ns: int = 0
    host_ns: int = 0
    ranks: int = 0


def _costly_calls(ranks: Sequence[Rank]) -> Grid:
    """The calls after or in which devices idled longest. Empty where none did."""
    found: dict[tuple[str, str, str], _Calls] = {}
    left_out = 0
    for rank in ranks:
        waits, allocations = rank.host.sync_calls, rank.host.alloc_calls
        for kind, groups in (("waits", waits.groups), ("allocates", allocations.groups)):
            for group in groups:
                where = _where(group)
                row = found.setdefault(
                    (kind, group.call, where), _Calls(kind=kind, call=group.call, where=where)
                )
                row.count += group.count
                row.idle_ns += group.idle_caused_ns
                row.host_ns += group.host_ns
                row.ranks += 1
        left_out += waits.groups_left_out + allocations.groups_left_out
    rows = sorted((row for row in found.values() if row.idle_ns), key=lambda row: (-row.idle_ns, row.call))
    many = len(ranks) > 1
    return Grid(
        caption="The costliest calls that wait for the device or allocate memory",
        head=["idle time", "count", *(["ranks"] if many else []), "time inside", "kind", "call", "in"],
        align="rr" + ("r" if many else "") + "rlln",
        rows=[
            [
                time(row.idle_ns),
                count(row.count),
                *([count(row.ranks)] if many else []),
                time(row.host_ns),
                word(row.kind),
                name(row.call, 64),
                name(row.where),
            ]
            for row in rows[:_CALLS]
        ],
        left_out=left_out + max(0, len(rows) - _CALLS),
    )


def _where(group: CallGroup) -> str:
    return ", ".join(part for part in (group.range_name, group.operator, group.call_site) if part)
