from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.analyzers.base.rows import occurrence, row_keys
from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.matching.numbered import InOrder
from perfdoc.analyzers.matching.shifts import possible_shifts
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import calls_of_file
from tests.analyzers.planted_ranks import KERNELS, Clock, Job
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder

NO_FACTS = JobFacts()


def test_each_reason_why_ranks_are_not_matched_is_told_once_with_its_ranks() -> None:
    ranks = [SimpleNamespace(name=f"rank {number}") for number in range(4)]
    found = InOrder(
        calls=(), matched_by=None, failed={1: "too few calls", 3: "too few calls", 2: "other steps"}
    )
    assert found.reason(ranks) == "rank 1, rank 3: too few calls; rank 2: other steps"  # type: ignore[arg-type]


def pairs(matches: Matches) -> list[list[tuple[int, int]]]:
    """(member, row) of every collective."""
    rows = list(zip(matches.member.tolist(), matches.row.tolist(), strict=True))
    first = matches.first.tolist()
    return [rows[a:b] for a, b in pairwise(first)]


def regular_steps(steps: int, *, jitter: int = 0, every_ns: int = 2_000_000) -> Job:
    """Two ranks, three all-reduces of different sizes a step, ends together."""
    rng = np.random.default_rng(5)
    job = Job(ranks=2)
    for step in range(steps):
        at = step * every_ns + int(rng.integers(0, jitter + 1))
        for i, size in enumerate((100, 200, 100)):
            job.collective("dp", dict.fromkeys((0, 1), at + 200_000 * i), 10_000, size=size, step=step)
    return job


def test_the_nth_call_of_a_communicator(tmp_path: Path) -> None:
    paths = regular_steps(4, jitter=50_000).write_nsys(tmp_path, [Clock(zero_ns=-10_000)] * 2)
    ranks = [c for p in paths for c in calls_of_file(p)]
    assert [(r.rank, r.rank_evidence) for r in ranks] == [(0, "mark"), (1, "mark")]
    matches = match_collectives(ranks, NO_FACTS)
    assert pairs(matches) == [[(0, i), (1, i)] for i in range(12)]
    (group,) = matches.groups
    assert (group.size, group.members, group.matched_by, group.missing) == (2, (0, 1), "order", 0)
    assert group.label == "DATA_PARALLEL_GROUP [0,1]"


@pytest.mark.parametrize("how", ["uneven steps", "numbers", "clocks", "neither"])
def test_captures_that_start_at_different_steps(how: str) -> None:
    # Rank 0 captured steps 0 to 5, rank 1 steps 2 to 7: as many calls, and the same, but not the same steps.
    # Steps of 2 ms are too short for UTC to tell them apart; of 200 ms they are not.
    every = 200_000_000 if how == "clocks" else 2_000_000
    job = regular_steps(8, jitter=300_000 if how == "uneven steps" else 0, every_ns=every)
    ranks = job.columns(
        [Clock(), Clock(offset_ns=3_000_000)],
        keep={0: slice(0, 18), 1: slice(6, 24)},
        steps=how == "numbers",
        utc=how not in ("uneven steps", "neither"),
    )
    matches = match_collectives(ranks, NO_FACTS)
    if how == "neither":
        assert (matches.state, len(matches)) == ("not_measured", 0)
        assert "may begin at different calls" in matches.reason
        assert matches.remedy
        return
    assert pairs(matches) == [[(0, i + 6), (1, i)] for i in range(12)]
    assert matches.rows_total == 36


def test_sequence_numbers_beat_everything(tmp_path: Path) -> None:
    # Kineto writes PyTorch's number: rank 1 lost the first two calls and one in the middle.
    paths = []
    for rank, numbers in ((0, [4, 5, 6, 7, 8]), (1, [6, 8])):
        builder = TimelineBuilder()
        process = builder.process(pid=100 + rank, rank=rank)
        device = process.device()
        process.group("3", "DATA_PARALLEL_GROUP", (0, 1))
        for number in numbers:
            device.kernel(
                KERNELS["all_reduce"],
                1000 * number,
                1000 * number + 500,
                stream=20,
                collective=Collective(operation="allreduce", group_name="3", ranks=(0, 1), sequence=number),
            )
        paths.append(write_kineto(builder.build(), tmp_path / f"r{rank}.json", process.pid))
    ranks = [c for p in paths for c in calls_of_file(p)]
    matches = match_collectives(ranks, NO_FACTS)
    assert pairs(matches) == [[(0, 2), (1, 0)], [(0, 4), (1, 1)]]
    assert [g.matched_by for g in matches.groups] == ["sequence"]
    assert matches.rows_total - len(matches.row) == 3


def test_a_number_with_several_kernels_matches_them_in_order() -> None:
    job = Job(ranks=2)
    for i in range(4):
        job.collective("dp", {0: 100 * i, 1: 100 * i}, 10)
    ranks = [replace(r, sequence=np.array([0, 0, 1, 1])) for r in job.columns()]
    assert pairs(match_collectives(ranks, NO_FACTS)) == [[(0, i), (1, i)] for i in range(4)]
    # Where ranks ran differently many kernels for a number, nobody knows which is which.
    ranks[1] = replace(ranks[1], sequence=np.array([0, 1, 1, 1]))
    assert pairs(match_collectives(ranks, NO_FACTS)) == []


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    # Names count within a process: group "1" is [0,1] on ranks 0 and 1, and [2,3] on the others.
    job = Job(ranks=4)
    for i in range(8):
        for pair in ((0, 1), (2, 3)):
            job.collective("tp", dict.fromkeys(pair, 100_000 * i), 10_000)
    known = []
    for rank, calls in enumerate(job.columns(sequences=True)):
        members = (0, 1) if rank < 2 else (2, 3)
        group = replace(calls.groups[0], communicator=0, name="1", ranks=members, size=2)
        known.append(replace(calls, groups=(group,)))
    matches = match_collectives(known, NO_FACTS)
    assert sorted(pairs(matches)) == sorted([[(a, i), (a + 1, i)] for i in range(8) for a in (0, 2)])
    # Without the ranks four of them show a group of two, and nothing tells who belongs to whom.
    blind = [replace(c, groups=(replace(c.groups[0], ranks=()),)) for c in known]
    matches = match_collectives(blind, NO_FACTS)
    assert len(matches) == 0
    assert matches.reason == "4 ranks show a group of this name that has 2 ranks"


def without_groups(ranks: list[CollectiveCalls]) -> list[CollectiveCalls]:
    """As captures are that tell none, everything on one stream."""
    none, one = np.full(len(ranks[0]), -1, np.int32), np.zeros(len(ranks[0]), np.int32)
    return [replace(c, groups=(), group=none[: len(c)], lane=one[: len(c)]) for c in ranks]


def test_without_any_group_all_ranks_are_one() -> None:
    job = Job(ranks=3)
    for i, operation in enumerate(("all_reduce", "all_gather", "all_reduce", "all_reduce", "all_gather")):
        job.collective("dp", dict.fromkeys(range(3), 100_000 * i), 10_000, operation=operation)
    ranks = without_groups(job.columns())
    matches = match_collectives(ranks, NO_FACTS)
    assert pairs(matches) == [[(0, i), (1, i), (2, i)] for i in range(5)]
    assert [g.matched_by for g in matches.groups] == ["world_order"]
    # One rank lists another operation: then they are not one group, and nothing is matched.
    operation = ranks[2].operation.copy()
    operation[3] = 1 - operation[3]
    assert len(match_collectives([*ranks[:2], replace(ranks[2], operation=operation)], NO_FACTS)) == 0
    # Half of a list is no list: that rank 2 goes on alone with other sizes speaks for another group.
    job = Job(ranks=3)
    for i in range(9):
        members = (0, 1) if i < 3 else (0, 1, 2) if i < 6 else (2,)
        job.collective("dp", dict.fromkeys(members, 100_000 * i), 10_000, size=i)
    assert len(match_collectives(without_groups(job.columns()), NO_FACTS)) == 0
    # A layout with two kinds of groups says the same before any call is looked at.
    matches = match_collectives(ranks, JobFacts(tp=2, dp=2))
    assert "tp and dp groups" in matches.reason


def test_an_all_to_all_that_no_range_names_is_told_by_its_partner() -> None:
    job = Job(ranks=2)
    for i in range(8):
        job.collective("ep", dict.fromkeys((0, 1), 100_000 * i), 10_000, operation="all_to_all")
    ranks = without_groups(job.columns())
    ranks[1] = replace(ranks[1], operations=("send_recv",), dimension=np.full(8, 6, np.int8))
    matches = match_collectives(ranks, NO_FACTS)
    assert {matches.operations[i] for i in matches.operation} == {"all_to_all"}
    assert len(matches) == 8


def test_the_dimension_is_what_members_agree_in() -> None:
    """Both say tp; they say tp and dp; one does not know."""
    job = Job(ranks=2)
    for i in range(3):
        job.collective("tp", dict.fromkeys((0, 1), 100_000 * i), 10_000)
    said = (("tp", "tp", "unknown"), ("tp", "dp", "tp"))
    ranks = [
        replace(calls, dimension=np.array([DIMENSIONS.index(d) for d in mine], np.int8))
        for calls, mine in zip(job.columns(sequences=True), said, strict=True)
    ]
    matches = match_collectives(ranks, NO_FACTS)
    assert [DIMENSIONS[d] for d in matches.dimension] == ["tp", "unknown", "tp"]


def test_a_missing_rank_is_known() -> None:
    job = Job(ranks=3)
    for i in range(5):
        job.collective("dp", dict.fromkeys(range(3), 100_000 * i), 10_000)
    matches = match_collectives(job.columns(sequences=True)[:2], NO_FACTS)
    assert len(matches) == 5
    assert [g.missing for g in matches.groups] == [1]
    assert matches.is_complete.all()


def test_groups_that_are_matched_align_clocks_for_the_others() -> None:
    # No epochs. The all-reduces tell by their uneven distances; three broadcasts alone could begin anywhere.
    rng = np.random.default_rng(14)
    job = Job(ranks=2)
    for i in range(30):
        at = 10_000_000 * i + int(rng.integers(0, 900_000))
        job.collective("tp", dict.fromkeys((0, 1), at), 20_000)
        if i % 10 == 5:
            job.collective("dp", dict.fromkeys((0, 1), at + 100_000), 20_000, operation="broadcast")
    columns = job.columns([Clock(), Clock(offset_ns=700_000, drift=30e-6)], utc=False)
    matches = match_collectives(columns, NO_FACTS)
    assert len(matches) == 33
    assert [g.matched_by for g in matches.groups] == ["order", "order"]
    alone = [replace(c, group=np.where(c.group == 0, -1, c.group)) for c in columns]
    assert len(match_collectives(alone, NO_FACTS)) == 0


def test_impossible_values_break_nothing() -> None:
    job = regular_steps(3)
    huge = 2**63 - 1
    for changes in (
        {"sequence": np.full(9, huge)},
        {"bytes": np.full(9, huge)},
        {"step": np.full(9, huge), "sequence": np.full(9, -1)},
        {"start_ns": np.zeros(9, np.int64), "end_ns": np.full(9, 2**61)},
        {"utc_origin_ns": 2**61 - 1},
        {"utc_origin_ns": None, "end_ns": np.full(9, 2**61)},
    ):
        one, other = job.columns()
        matches = match_collectives([one, replace(other, **changes)], NO_FACTS)
        assert align_clocks(matches, [one, replace(other, **changes)]).clocks


def test_one_rank_and_a_rank_twice_are_refused() -> None:
    job = regular_steps(2)
    one, other = job.columns(sequences=True)
    matches = match_collectives([one], NO_FACTS)
    assert (matches.state, matches.reason) == ("not_measured", "only one rank was given")
    matches = match_collectives([one, replace(other, rank=0)], NO_FACTS)
    assert matches.state == "not_measured"
    assert matches.reason.startswith("several captures say that they are rank 0")
    # Two devices of one process are not two captures of one rank: the one that communicates is the rank.
    nothing = {n: getattr(one, n)[:0] for n in COLUMNS}
    matches = match_collectives([replace(one, groups=(), **nothing), one, other], NO_FACTS)
    assert [m.rank for m in matches.members] == [None, 0, 1]
    assert len(matches) == 6


def test_steps_match_where_whole_lists_do_not() -> None:
    # Rank 1 evaluates in step 1: one more call there. The other steps are matched, step 1 is not.
    job = Job(ranks=2)
    for step in range(4):
        for i in range(2):
            at = 1_000_000 * step + 100_000 * i
            job.collective("dp", dict.fromkeys((0, 1), at), 10_000, size=100 + i, step=step)
    ranks = job.columns(steps=True)
    extra = {n: np.insert(getattr(ranks[1], n), 4, getattr(ranks[1], n)[3]) for n in COLUMNS}
    ranks[1] = replace(ranks[1], **extra)
    matches = match_collectives(ranks, NO_FACTS)
    assert pairs(matches) == [[(0, i), (1, i if i < 4 else i + 1)] for i in (0, 1, 4, 5, 6, 7)]
    assert matches.groups[0].matched_by == "step"
    assert matches.groups[0].reason == "rank 0: 1 of 4 steps do not hold the same calls"


COLUMNS = (
    *("start_ns", "end_ns", "group", "operation", "dimension", "bytes", "sequence"),
    *("peer", "lane", "step", "in_window", "end_is_exact"),
)


QUIETLY = settings(deadline=None)
LISTS = st.lists(st.integers(0, 2), min_size=1, max_size=10)


@QUIETLY
@given(LISTS, LISTS)
def test_shifts_against_a_search(a: list[int], b: list[int]) -> None:
    need = max(1, round(0.25 * min(len(a), len(b))))
    fits = []
    for shift in range(-len(b), len(a) + 1):
        overlap = [(i + shift, i) for i in range(len(b)) if 0 <= i + shift < len(a)]
        if len(overlap) >= need and all(a[i] == b[j] for i, j in overlap):
            fits.append(shift)
    assert possible_shifts(np.array(a, np.int64), np.array(b, np.int64), 0.25).tolist() == fits


@QUIETLY
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), max_size=12))
def test_row_keys_against_a_dictionary(rows: list[tuple[int, int]]) -> None:
    a, b = np.array(rows, np.int64).reshape(-1, 2).T
    first, key = row_keys(a, b)
    seen: dict[tuple[int, int], list[int]] = {}
    for i, row in enumerate(rows):
        seen.setdefault(row, []).append(i)
    assert first.tolist() == [places[0] for places in seen.values()]
    assert key.tolist() == [list(seen).index(row) for row in rows]
    assert occurrence(a, b).tolist() == [seen[row].index(i) for i, row in enumerate(rows)]
