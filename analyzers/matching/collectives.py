"""Which rows of which ranks are the same collective, and who takes part in the comparison.

By the number within the group where the capture has one, else by order: the n-th call of the group on every
rank, once the beginnings of the captures are aligned (shifts). Where no rank tells any group, the calls
of all ranks are matched in order if all list the same operations. What is not certain is left out, with the
reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.alignment import ClockGuess, align_clocks
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches, MatchGroup, Member, no_matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.groups import JobGroups, job_groups
from perfdoc.analyzers.matching.numbered import CalledRows, assemble, by_sequence, in_order
from perfdoc.records import dataclass
from perfdoc.traces.job_facts import JobFacts


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why ranks cannot be compared, and what to do."""

    reason: str
    remedy: str


def members_of(
    ranks: Sequence[CollectiveCalls], world_size: int | None = None, *, whole: bool = True
) -> tuple[tuple[Member, ...], Problem | None]:
    """The members in the given order, and what stands in the way of comparing them.

    Where no capture tells its rank, the job's own communicator numbers them. world_size: of the job, where
    it is known beside the captures. whole: False where captures were left out: the largest communicator of
    those at hand need not be the job's then.
    """
    clocks = {c: i for i, c in enumerate(dict.fromkeys(calls.clock for calls in ranks))}
    named = [(c.rank, c.rank_evidence) for c in ranks]
    if all(rank is None for rank, _ in named):
        known = world_size or max((r.world_size for r in ranks if r.world_size is not None), default=None)
        if whole or known is not None:
            named = _by_communicator(ranks, known) or named
    named = _one_device_each(ranks, named)
    members = tuple(
        Member(rank=rank, rank_evidence=evidence, label=calls.label, clock=clocks[calls.clock])
        for calls, (rank, evidence) in zip(ranks, named, strict=True)
    )
    return members, _problem(ranks, members)


def _by_communicator(
    ranks: Sequence[CollectiveCalls], world_size: int | None
) -> list[tuple[int | None, str]] | None:
    """Own ranks within the communicator of the whole job, in which every member knows its place.

    The largest one need not be that: the eight ranks of a node are numbered 0 to 7 in their tensor-parallel
    group, whichever node of the job it is. It is the job's if it has as many ranks as the job; where that is
    not known, if nobody is missing from it nor from any other communicator of the captures.
    """
    seats: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    for at, calls in enumerate(ranks):
        for group in calls.groups:
            if group.communicator and group.own_in_group is not None and group.size is not None:
                seats.setdefault(group.communicator, {})[at] = group.own_in_group
                sizes[group.communicator] = max(group.size, sizes.get(group.communicator, 0))
    whole = [c for c, own in seats.items() if len(own) == len(ranks) == len(set(own.values()))]
    if not whole:
        return None
    largest = max(whole, key=lambda c: (sizes[c], c))
    if world_size is None:
        is_job = all(len(own) == sizes[c] for c, own in seats.items())
    else:
        is_job = sizes[largest] == world_size
    return [(seats[largest][at], "communicator") for at in range(len(ranks))] if is_job else None


def _one_device_each(
    ranks: Sequence[CollectiveCalls], named: Sequence[tuple[int | None, str]]
) -> list[tuple[int | None, str]]:
    """Of a process's several devices the one that communicates most is the rank."""
    busiest: dict[tuple[str, int, int], int] = {}
    for at, (calls, (rank, _)) in enumerate(zip(ranks, named, strict=True)):
        if rank is not None:
            key = (calls.clock, calls.process, rank)
            if key not in busiest or len(calls) > len(ranks[busiest[key]]):
                busiest[key] = at
    kept = set(busiest.values())
    return [n if n[0] is None or at in kept else (None, "none") for at, n in enumerate(named)]


def _problem(ranks: Sequence[CollectiveCalls], members: Sequence[Member]) -> Problem | None:
    if len(members) < 2:
        return Problem(
            reason="only one rank was given", remedy="Give the captures of several ranks of the job together."
        )
    count = Counter(m.rank for m in members if m.rank is not None)
    twice = next((rank for rank, n in sorted(count.items()) if n > 1), None)
    if twice is not None:
        names = ", ".join(m.label for m in members if m.rank == twice)
        return Problem(
            reason=f"several captures say that they are rank {twice}: {names}",
            remedy="Give one capture of each rank.",
        )
    if not any(len(calls) for calls in ranks):
        return Problem(reason="no rank communicates in the captures", remedy="")
    return None


_SIZE_DIFFERS = frozenset({"all_to_all", "send_recv", "gather", "scatter", "dispatch", "combine", "unknown"})
"""Operations whose message may have another size on every rank."""
_KINDS = {"all_to_all": "send_recv"}
"""PyTorch's all-to-all runs send/receive kernels; one that no range names is recognised by its partners."""
_NO_COMMUNICATION = "peer_copy"
MAX_GROUPS = 16_384
"""Groups of a job that are matched. A rank has tens; a hostile trace has one for each call."""
REMEDY = (
    "Capture process groups (nsys: NCCL 2.25 or newer; PyTorch profiler: torch 2.4 or newer) and number "
    "the step ranges."
)
"""Where captures do not tell which call is whose."""


@dataclass(frozen=True, kw_only=True)
class _Words:
    """The job's words for operations, and what each row is by them."""

    operations: tuple[str, ...]
    operation: tuple[I64, ...]
    kind: tuple[I64, ...]
    """What members of one collective must agree in."""
    token: tuple[I64, ...]
    """What the n-th calls of members must agree in: kind and, where it is the same on all ranks, size."""


def match_collectives(ranks: Sequence[CollectiveCalls], facts: JobFacts, *, whole: bool = True) -> Matches:
    """Match the collectives of all ranks.

    facts: the layout, which tells whether all ranks may be one group where no capture tells groups.
    """
    members, problem = members_of(ranks, facts.world_size, whole=whole)
    if problem is not None:
        return no_matches(problem.reason, problem.remedy, members)
    words = _words(ranks)
    found = job_groups(ranks, members)
    whole_job = not any((rows >= 0).any() for rows in found.of_row)
    if whole_job:
        reason = _several_groups(facts)
        if reason:
            return no_matches(reason, REMEDY, members)
        found = _whole_job(ranks, words)
    first = _match(ranks, members, found, words, ClockGuess.from_utc(ranks, members), whole_job=whole_job)
    if len(first) and any(not g.matched_by and g.reason for g in first.groups):
        # Groups that could be matched align the clocks far better than UTC does, which may decide the rest.
        guess = ClockGuess.from_alignment(ranks, members, align_clocks(first, ranks))
        return _match(ranks, members, found, words, guess, whole_job=whole_job)
    return first


def _match(
    ranks: Sequence[CollectiveCalls],
    members: tuple[Member, ...],
    found: JobGroups,
    words: _Words,
    guess: ClockGuess,
    *,
    whole_job: bool,
) -> Matches:
    callers = _rows_by_group(found)
    groups: list[MatchGroup] = []
    numbered: list[CalledRows] = []
    ordered: list[CalledRows] = []
    for at, group in enumerate(found.groups):
        rows = callers[at]
        result = replace(group, members=tuple(rows))
        if len(rows) < 2 or group.reason:
            pass
        elif at >= MAX_GROUPS:
            result = replace(result, reason=f"it is one of more than {MAX_GROUPS:,} groups")
        elif all((ranks[m].sequence[r] >= 0).all() for m, r in rows.items()):
            numbered += [_called(at, ranks[m].sequence[r], m, r) for m, r in rows.items()]
            result = replace(result, matched_by="sequence")
        else:
            matched = in_order(ranks, rows, words.token, guess, all_or_none=whole_job)
            ordered += [_called(at, n, m, r) for m, n, r in matched.calls]
            by = "world_order" if whole_job and matched.matched_by else matched.matched_by
            result = replace(result, matched_by=by, reason=matched.reason(members))
        groups.append(result)
    called = CalledRows.joined([by_sequence(CalledRows.joined(numbered)), *ordered])
    # A group of one rank has nobody to be matched with.
    alone = sum(len(r) for g, rows in zip(groups, callers, strict=True) if g.size == 1 for r in rows.values())
    total = sum(len(r.sequence) for r in ranks) - alone
    matches = assemble(
        called,
        members=members,
        groups=tuple(groups),
        operations=words.operations,
        operation=_of_rows(called, words.operation),
        kind=_of_rows(called, words.kind),
        dimension=_of_rows(called, tuple(r.dimension.astype(np.int64) for r in ranks)),
        rows_total=total,
    )
    if len(matches):
        return matches
    reasons = dict.fromkeys(g.reason for g in groups if g.reason)
    reason = "; ".join(list(reasons)[:3]) or "no two ranks have a collective in common"
    return replace(matches, reason=reason, remedy=REMEDY)


def _called(group: int, number: I64, member: int, rows: I64) -> CalledRows:
    groups, members = np.full(len(rows), group), np.full(len(rows), member)
    return CalledRows(group=groups, number=number, member=members, row=rows)


def _of_rows(called: CalledRows, columns: tuple[I64, ...]) -> I64:
    """A column of the ranks at these rows."""
    first = np.concatenate(([0], np.cumsum([len(c) for c in columns])))
    return np.concatenate(columns)[first[called.member] + called.row]


def _rows_by_group(found: JobGroups) -> list[dict[int, I64]]:
    """For each group the rows of each member that called it, in order."""
    callers: list[dict[int, I64]] = [{} for _ in found.groups]
    for member, of_row in enumerate(found.of_row):
        order = np.argsort(of_row, kind="stable")
        order = order[of_row[order] >= 0]
        present, first = np.unique(of_row[order], return_index=True)
        for group, rows in zip(present.tolist(), np.split(order, first[1:]), strict=False):
            callers[group][member] = rows
    return callers


def _words(ranks: Sequence[CollectiveCalls]) -> _Words:
    operations = tuple(sorted({_WHOLE.get(o, o) for r in ranks for o in r.operations} | {"all_to_all"}))
    kinds = sorted({_KINDS.get(o, o) for o in operations})
    kind_of = np.array([kinds.index(_KINDS.get(o, o)) for o in operations], np.int64)
    size_tells = np.array([o not in _SIZE_DIFFERS for o in operations], bool)
    each, all_kinds, tokens = [], [], []
    for r in ranks:
        table = np.array([operations.index(_WHOLE.get(o, o)) for o in r.operations], np.int64)
        operation = table[r.operation] if len(table) else np.zeros(len(r), np.int64)
        if "send_recv" in operations:
            both_ways = operation == operations.index("send_recv")
            one_way = np.isin(r.operation, [i for i, o in enumerate(r.operations) if o in ("send", "recv")])
            experts = both_ways & ~one_way & (r.dimension == DIMENSIONS.index("ep"))
            operation = np.where(experts, operations.index("all_to_all"), operation)
        each.append(operation)
        all_kinds.append(kind_of[operation])
        size = np.where(size_tells[operation], r.bytes + 1, 0)
        tokens.append(kind_of[operation] * (1 << 48) + (size & ((1 << 48) - 1)))
    return _Words(operations=operations, operation=tuple(each), kind=tuple(all_kinds), token=tuple(tokens))


_WHOLE = {"send": "send_recv", "recv": "send_recv"}
"""The two sides of one transfer."""


def _several_groups(facts: JobFacts) -> str:
    """Why the ranks may not be taken for one group; empty where they may."""
    several = [d for d in ("tp", "cp", "pp", "dp") if (getattr(facts, d) or 1) > 1]
    if len(several) > 1:
        return f"the job has {' and '.join(several)} groups, and no capture shows the group of a call"
    return ""


def _whole_job(ranks: Sequence[CollectiveCalls], words: _Words) -> JobGroups:
    """One group of all ranks for each stream, in the order in which the streams first communicate."""
    of_row, lanes = [], 0
    for r, operation in zip(ranks, words.operation, strict=True):
        moves = np.array([o != _NO_COMMUNICATION for o in words.operations], bool)[operation]
        lane = np.where(moves, r.lane.astype(np.int64), -1)
        lanes = max(lanes, int(lane.max(initial=-1)) + 1)
        of_row.append(lane)
    size = max((r.world_size for r in ranks if r.world_size is not None), default=None)
    everyone = tuple(range(len(ranks)))
    return JobGroups(
        groups=tuple(MatchGroup(label="all ranks", size=size, members=everyone) for _ in range(lanes)),
        of_row=tuple(of_row),
    )
