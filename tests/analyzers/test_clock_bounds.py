"""Clocks that too few ends tie: what cannot have come before what bounds them; nothing more is claimed."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.clocks.bounds import Moments, bounds_of
from perfdoc.analyzers.clocks.differences import STEEPEST
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.traces.job_facts import JobFacts
from tests.amount import tries
from tests.analyzers.planted_ranks import Clock, Job
from tests.analyzers.test_clocks import SECOND, aligned, everybody_together, instants
from tests.analyzers.test_skew import skew_of


def test_too_few_ends_leave_what_they_bound() -> None:
    # Three all-reduces of 50 µs, for which nobody waits: nobody leaves before the other has come, so clocks
    # are within 50 µs of where the ends say. 1 µs is for their ticks on either side, and 1.5 µs for how far
    # they may drift, at 500 ppm, over the 3 ms of the captures.
    job = everybody_together(2, 3, 1_500_000)
    clocks = aligned(job.columns([Clock(), Clock(offset_ns=70_000)], sequences=True))
    assert [(c.offset_ns, c.source, c.component) for c in clocks.clocks] == [
        (0, "utc", 0),
        (70_000, "bounds", 0),
    ]
    assert [c.cluster for c in clocks.clocks] == [0, 1]
    assert clocks.clocks[1].drift_ppm is None
    assert clocks.residual_ns == 1_000
    assert clocks.resolution_ns == clocks.resolution_between([0, 1]) == clocks.group_resolution_ns[0]
    assert 52_000 <= (clocks.resolution_ns or 0) <= 52_000 + 1_600
    assert clocks.clocks[1].resolution_ns == clocks.resolution_ns


def test_utc_that_too_few_ends_do_not_contradict_counts() -> None:
    # 40 µs between the ends may be the clocks or the ends: UTC could be right, and 90 µs wrong at most.
    job = everybody_together(2, 3, 1_000_000)
    clocks = aligned(job.columns([Clock(), Clock(offset_ns=40_000)], sequences=True))
    assert [(c.offset_ns, c.source) for c in clocks.clocks] == [(0, "utc"), (0, "utc")]
    assert 92_000 <= (clocks.resolution_between([0, 1]) or 0) <= 92_000 + 1_100
    # What the ends differ by is less, and proves nothing.
    assert clocks.resolution_ns == clocks.group_resolution_ns[0] == clocks.resolution_between([0, 1])
    assert clocks.residual_ns == 40_000
    # Without UTC the ends count.
    blind = aligned(job.columns([Clock(), Clock(offset_ns=40_000)], sequences=True, utc=False))
    assert [c.source for c in blind.clocks] == ["utc", "bounds"]
    assert not blind.clocks[1].has_utc
    end = [blind.aligned(i, job.columns([Clock(), Clock(offset_ns=40_000)])[i].end_ns) for i in (0, 1)]
    assert (end[0] == end[1]).all()


def test_groups_that_share_too_few_ends_are_no_better_known_than_they_are_bounded() -> None:
    # TP {0,1} and {2,3} with 30 ends each; they meet three times, in an all-reduce of 20 µs to which ranks
    # 0 and 1 come 2 ms early. UTC of ranks 2 and 3 is 900 µs wrong.
    job = Job(ranks=4)
    for i, at in enumerate(instants(30, 5_000_000)):
        for pair in ((0, 1), (2, 3)):
            job.collective("tp", dict.fromkeys(pair, at), 20_000)
        if i % 14 == 1:
            came = {0: at + 500_000, 1: at + 500_000, 2: at + 2_500_000, 3: at + 2_500_000}
            job.collective("other", came, 20_000)
    wrong = [0, 100_000, 900_000, 1_000_000]
    ranks = job.columns([Clock(offset_ns=o) for o in wrong])
    matches = match_collectives(ranks, JobFacts())
    clocks = align_clocks(matches, ranks)
    assert [c.offset_ns for c in clocks.clocks] == wrong
    assert [c.source for c in clocks.clocks] == ["ends", "ends", "bounds", "bounds"]
    assert [c.cluster for c in clocks.clocks] == [0, 0, 1, 1]
    # Ranks 0 and 1 leave no earlier than 2 and 3 come: within 20 µs. But that these come no later than those
    # leave is all that bounds the other side: 2 ms and 20 µs.
    assert clocks.resolution_between([0, 1]) == clocks.resolution_between([2, 3]) == 1_000
    assert 2_020_000 <= (clocks.resolution_between([0, 2]) or 0) <= 2_040_000
    resolution = {g.members: r for g, r in zip(matches.groups, clocks.group_resolution_ns, strict=True)}
    assert resolution[0, 1] == resolution[2, 3] == 1_000
    assert resolution[0, 1, 2, 3] == clocks.resolution_between(range(4))
    assert clocks.resolution_ns == clocks.resolution_between(range(4))


def test_messages_bound_what_ends_do_not() -> None:
    # No common group at all; rank 0 sends to rank 1, which waits for it, and rank 1 back: 30 µs each.
    job = Job(ranks=2)
    for rank in (0, 1):
        job.collective("dp", {rank: 0}, 5_000)
    ranks = job.columns([Clock(zero_ns=-10_000_000), Clock(offset_ns=700_000, zero_ns=-30_000_000)])
    sent = np.arange(1, 40) * 1_000_000
    local = [np.array([10_000_000]), np.array([30_700_000])]
    there, back = sent, sent + 400_000
    messages = Moments(
        before=np.repeat([0, 1], 39),
        before_ns=np.concatenate((there + local[0], back + local[1])),
        after=np.repeat([1, 0], 39),
        after_ns=np.concatenate((there + 30_000 + local[1], back + 30_000 + local[0])),
    )
    matches = match_collectives(ranks, JobFacts())
    assert [c.component for c in align_clocks(matches, ranks).clocks] == [0, 1]
    clocks = align_clocks(matches, ranks, messages)
    assert [(c.component, c.source) for c in clocks.clocks] == [(0, "utc"), (0, "bounds")]
    assert clocks.clocks[1].offset_ns == pytest.approx(700_000, abs=1_000)
    assert 31_000 <= (clocks.resolution_between([0, 1]) or 0) <= 35_000
    # Only one way: nothing says how late rank 1's clock is.
    one_way = Moments(**{n: getattr(messages, n)[:39] for n in ("before", "before_ns", "after", "after_ns")})
    assert [c.component for c in align_clocks(matches, ranks, one_way).clocks] == [0, 1]
    # Receives that end 2 ms before their sends are no messages.
    upside_down = replace(messages, after_ns=messages.after_ns - 2_000_000)
    assert [c.component for c in align_clocks(matches, ranks, upside_down).clocks] == [0, 1]


def test_ends_that_cover_a_part_tell_less_of_the_rest() -> None:
    # Six all-reduces in the first 50 ms tie the clocks to a few µs; 10 s later 40 ppm are 400 µs.
    job = Job(ranks=2)
    for at in instants(6, 10_000_000):
        job.collective("dp", dict.fromkeys((0, 1), at), 20_000)
    for rank in (0, 1):
        job.collective("tp", {rank: 10 * SECOND}, 5_000)
    clocks = aligned(job.columns([Clock(), Clock(drift=40e-6)]))
    # Within those 50 ms they lie 1 µs to either side; six ends may all be off by four times as much.
    assert 4_000 <= (clocks.group_resolution_ns[0] or 0) <= 5_000
    there = [clocks.aligned(i, np.array([10 * SECOND + 400_000 * i]))[0] for i in (0, 1)]
    assert abs(there[1] - there[0]) > 300_000
    assert (clocks.resolution_between([0, 1]) or 0) > abs(there[1] - there[0])


@settings(max_examples=tries(25, 120), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_bounds_leave_against_every_corner(seed: int) -> None:
    """A line of random offset and drift, bounded at random times: it lies within what is said to be left, and
    what is said to be left is the hull of all lines through two bounds that keep all of them."""
    rng = np.random.default_rng(seed)
    span = int(rng.integers(1_000_000, 10 * SECOND))
    drift, offset = rng.uniform(-100e-6, 100e-6), rng.uniform(-1e6, 1e6)
    count = int(rng.integers(2, 12))
    # As clock 1 reads: clock 1 - clock 0 is at most (above) or at least (below) so much.
    time = rng.choice(np.arange(64), count, replace=False) * (span // 64) + span // 128
    line = np.round(offset + drift * time)
    slack = np.round(rng.exponential(50_000, count)) + 1_000
    above = rng.random(count) < 0.5
    bound = np.where(above, line + slack, line - slack).astype(np.int64)
    moments = Moments(
        before=np.where(above, 0, 1),
        before_ns=np.where(above, time - bound, time),
        after=np.where(above, 1, 0),
        after_ns=np.where(above, time, time - bound),
    )
    found = bounds_of(moments, 0, span)
    assert (found.one.tolist(), found.other.tolist(), found.possible.tolist()) == ([0], [1], [True])
    for at, low, high in zip((0, span), found.low_ns[:, 0], found.high_ns[:, 0], strict=True):
        assert low <= offset + drift * at <= high
    corners = [(s, b - s * t) for s in (-STEEPEST, STEEPEST) for t, b in zip(time, bound, strict=True)]
    for i, j in combinations(range(count), 2):
        slope = (bound[j] - bound[i]) / (time[j] - time[i])
        corners.append((slope, bound[i] - slope * time[i]))
    fits = [
        (s, level)
        for s, level in corners
        if abs(s) <= STEEPEST
        and (level + s * time <= bound + 0.01)[above].all()
        and (level + s * time >= bound - 0.01)[~above].all()
    ]
    for at, low, high in zip((0, span), found.low_ns[:, 0], found.high_ns[:, 0], strict=True):
        values = [level + s * at for s, level in fits]
        assert (high == np.inf) == (not above.any())
        assert (low == -np.inf) == bool(above.all())
        if high < np.inf:
            assert high == pytest.approx(max(values), abs=2)
        if low > -np.inf:
            assert low == pytest.approx(min(values), abs=2)


@settings(max_examples=tries(12, 60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_clusters_are_never_further_apart_than_said(seed: int) -> None:
    """Up to four pairs of ranks that meet each other a few times only, whoever comes first; clocks have
    random offsets and drifts. What two of them show for an instant lies within the published resolution."""
    rng = np.random.default_rng(seed)
    pairs = int(rng.integers(2, 5))
    ranks = 2 * pairs
    job, at = Job(ranks=ranks), 1_000_000
    rounds = int(rng.integers(20, 40))
    meet = rng.choice(rounds, int(rng.integers(1, 5)), replace=False)
    for i in range(rounds):
        at += int(rng.integers(1_000_000, 9_000_000))
        for k in range(pairs):
            came = {r: at + int(rng.exponential(200_000)) for r in (2 * k, 2 * k + 1)}
            job.collective("tp", came, 30_000)
        if i in meet:
            at += 3_000_000
            came = {r: at + int(rng.exponential(10 ** rng.uniform(3, 6))) for r in range(ranks)}
            at = job.collective("other", came, int(rng.integers(5_000, 50_000)), operation="all_gather")
    planted = [
        Clock(
            offset_ns=int(rng.integers(-3_000_000, 3_000_000)),
            drift=float(rng.uniform(-50e-6, 50e-6)),
            middle_ns=at // 2,
            zero_ns=int(rng.integers(-SECOND, SECOND)),
        )
        for _ in range(ranks)
    ]
    clocks = aligned(job.columns(planted, sequences=True))
    for one, other in combinations(range(ranks), 2):
        resolution = clocks.resolution_between([one, other])
        assert resolution is not None
        assert resolution <= (clocks.resolution_between(range(ranks)) or 0)
        both = job.calls[one], job.calls[other]
        begin, end = max(c[0].start_ns for c in both), min(c[-1].end_ns for c in both)
        for true in (begin, at // 2, end):
            seen = [int(clocks.aligned(r, np.array([planted[r].local(true)]))[0]) for r in (one, other)]
            # Every clock's time, offset and alignment are rounded to a ns.
            assert abs(seen[0] - seen[1]) <= resolution + 4


@pytest.mark.parametrize("off_ns", [0, 1_000_000, 5_000_000, -5_000_000])
@pytest.mark.parametrize("late_ns", [0, 500_000, 3_000_000, 20_000_000])
def test_who_is_late_by_less_than_utc_is_off_is_not_named(off_ns: int, late_ns: int) -> None:
    """Two hosts, set by NTP, meet three times, which ties no clocks: each collective takes 2 ms after the
    later one has come, and bounds where the clocks are to as much either way. Beyond, the wait tells."""
    job = Job(ranks=2)
    for at in (20_000_000, 60_000_000, 100_000_000):
        job.collective("dp", {0: at, 1: at + late_ns}, 2_000_000)
    found = skew_of(job.columns([Clock(), Clock(offset_ns=off_ns)], sequences=True))
    assert found.stragglers == []
    assert found.resolution_ns is not None
    assert found.resolution_ns > 2_000_000
    of_1 = next(c.offset_ns for c in found.clocks if c.rank == 1)
    assert of_1 is not None
    assert abs(of_1 - off_ns) <= found.resolution_ns, "the truth is within what is said"
    assert (found.latest and found.latest.rank) == (1 if late_ns > 2_000_000 else None)
    assert (found.distinguishable > 0) == (late_ns > 2_000_000)
