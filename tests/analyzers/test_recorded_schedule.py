"""Stages, micro-batches and passes from messages alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.pipeline.known_schedules import KnownSchedule, known_schedules
from perfdoc.analyzers.pipeline.operations import COMPUTE, MESSAGE
from perfdoc.analyzers.pipeline.recorded_schedule import RankSchedule, Reading, find_schedule, most_alike
from tests.analyzers.planted_operations import expected, interleaved, plant


def lengths(stage: int, replica: int, step: int, forward: bool, number: int) -> int:
    """Backward passes take twice as long; nothing else is even."""
    return (100_000 if forward else 200_000) + 1_000 * stage + 300 * replica + 70 * number + 10 * step


@given(
    pp=st.integers(2, 5),
    dp=st.integers(1, 3),
    count=st.integers(1, 9),
    batched=st.sampled_from(["never", "pairs", "always"]),
    named=st.booleans(),
    first=st.booleans(),
)
def test_passes_are_those_that_were_planted_or_unknown(
    pp: int, dp: int, count: int, batched: str, named: bool, first: bool
) -> None:
    first |= batched == "never"
    ranks, _ = plant(pp, dp, count, lengths, batched=batched, named=named, all_forwards_first=first, steps=2)
    found = find_schedule(ranks)
    if found.reason:
        assert batched == "always" or not named, found.reason
        return
    assert (found.pp, found.micro_batches) == (pp, count)
    for rank, of, order in zip(
        ranks, found.ranks, expected(ranks, pp, dp, count, all_forwards_first=first), strict=True
    ):
        assert of is not None
        assert of.stage == rank.rank // dp  # type: ignore[operator]
        assert [p for i in sorted(of.passes) for p in of.passes[i]] == order


def test_a_pipeline_of_two_by_hand() -> None:
    # Stage 0: F0 | send | F1 | send and receive | B0 | receive | B1.
    # Stage 1: receive | F0 B0 | both | F1 B1 | send.
    ranks, _ = plant(2, 1, 2, lengths)
    assert [r.operation[1:-2] for r in ranks] == [
        ("", "send", "", "coalesced", "", "recv", ""),
        ("recv", "", "coalesced", "", "send"),
    ]
    found = find_schedule(ranks)
    assert (found.pp, found.micro_batches, found.name) == (2, 2, "1F1B")
    first, last = found.ranks
    assert first is not None
    assert last is not None
    assert dict(first.passes) == {1: ((True, 0),), 3: ((True, 1),), 5: ((False, 0),), 7: ((False, 1),)}
    assert dict(last.passes) == {2: ((True, 0), (False, 0)), 4: ((True, 1), (False, 1))}
    both = frozenset({(True, 0, 1, 1), (False, 1, 0, 0)})
    assert first.messages[4] == last.messages[3] == both


def test_a_message_too_many_fits_nothing() -> None:
    ranks, _ = plant(2, 1, 3, lengths)
    first = ranks[0]
    kept = np.flatnonzero(np.arange(len(first)) != int(np.flatnonzero(first.kind == MESSAGE)[-1]))
    columns = {
        n: getattr(first, n)[kept] for n in ("kind", "of", "group", "dimension", "peer", "lane", "is_awaited")
    }
    names = "start_ns", "duration_ns", "busy_ns", "split_ns", "row", "busy_before_ns", "shared_before_ns"
    tables = {n: getattr(first, n)[kept] for n in names}
    words = {n: tuple(getattr(first, n)[i] for i in kept) for n in ("operation", "sides")}
    found = find_schedule([replace(first, **columns, **tables, **words), ranks[1]])
    assert found.reason == "the messages of a step fit no schedule that is known"


@pytest.mark.parametrize("pp", [2, 4])
def test_batched_messages_go_by_the_group_in_its_order(pp: int) -> None:
    ranks, _ = plant(pp, 2, 8, lengths, batched="always")
    found = find_schedule(ranks)
    assert (found.pp, found.micro_batches, found.reason) == (pp, 8, "")


@pytest.mark.parametrize("kept", [(3,), (2, 3), (1, 2, 3), (0, 1, 2), (0, 1), (0, 2, 3), (0, 3)])
def test_stages_that_were_not_captured_are_those_of_the_group(kept: tuple[int, ...]) -> None:
    ranks, _ = plant(4, 1, 8, lengths, steps=3)
    found = find_schedule([ranks[i] for i in kept])
    assert (found.reason, found.pp, found.pipelines) == ("", 4, ((0, 1, 2, 3),))
    assert [r.stage for r in found.ranks if r is not None] == list(kept)


def test_the_last_stage_alone_does_not_tell_how_many_are_before_it() -> None:
    ranks, _ = plant(4, 1, 8, lengths, steps=3)
    alone = replace(ranks[3], groups=(), group=np.full_like(ranks[3].group, -1))
    assert find_schedule([alone]).pp is None


@given(
    pp=st.integers(2, 4),
    dp=st.integers(1, 2),
    turns=st.integers(1, 3),
    chunks=st.integers(2, 3),
    batched=st.sampled_from(["pairs", "always"]),
    named=st.booleans(),
)
def test_chunks_of_stages_are_those_that_were_planted_or_unknown(
    pp: int, dp: int, turns: int, chunks: int, batched: str, named: bool
) -> None:
    count = turns * pp
    ranks, _ = plant(pp, dp, count, lengths, batched=batched, named=named, chunks=chunks, steps=2)
    found = find_schedule(ranks)
    if found.reason:
        assert batched == "always" or not named, found.reason
        return
    assert (found.pp, found.vpp, found.micro_batches) == (pp, chunks, count)
    for rank, of in zip(ranks, found.ranks, strict=True):
        assert of is not None
        stage = (rank.rank or 0) // dp
        planned = [p for e in interleaved(stage, pp, count, chunks) for p in e.passes]
        assert of.stage == stage
        assert [p for i in sorted(of.passes) for p in of.passes[i]] == planned


def test_two_stages_of_two_chunks_by_hand() -> None:
    # Stage 0 with 2 micro-batches: F0 F1 of chunk 0, then chunk 1's, whose input comes from the last stage.
    # 2 x 1 + 2 = 4 forwards are ahead, which are all: numbers 0 and 1, then 2 and 3, and back from chunk 1.
    ranks, _ = plant(2, 1, 2, lengths, chunks=2)
    found = find_schedule(ranks)
    assert (found.name, found.vpp, found.micro_batches) == ("interleaved 1F1B", 2, 2)
    first = found.ranks[0]
    assert first is not None
    order = [p for i in sorted(first.passes) for p in first.passes[i]]
    assert order == [(True, i) for i in range(4)] + [(False, i) for i in (2, 3, 0, 1)]
    # What chunk 1 needs of the last stage's chunk 0, and what it gives to its chunk 1.
    carried = frozenset().union(*first.messages.values())
    assert {(True, 1, 0, 0), (True, 1, 0, 1), (True, 0, 1, 2), (True, 0, 1, 3)} <= carried


def test_a_ring_of_which_half_was_captured_is_that_of_its_group() -> None:
    ranks, _ = plant(4, 1, 8, lengths, chunks=2)
    found = find_schedule(ranks[1:3])
    assert (found.pp, found.vpp, found.pipelines) == (4, 2, ((0, 1, 2, 3),))


def test_of_two_readings_that_tell_little_the_one_with_one_chunk_is_taken() -> None:
    # Logarithms of lengths vary by 0.0092 where passes are forward and backward in turn, by 0.0167 where the
    # forwards come first: more than half of it, so that lengths do not decide, and kernels are the same.
    ranks, _ = plant(2, 1, 2, lengths)
    rows = np.flatnonzero(ranks[0].kind == COMPUTE)[:4]
    lasts = ranks[0].duration_ns.copy()
    lasts[rows] = np.array([100, 140, 130, 150])[:, None]
    rank = replace(ranks[0], duration_ns=lasts, sides=(((1,), ()),) * len(ranks[0]))

    def reading(vpp: int, order: str) -> Reading:
        passes = {row: ((word == "F", i),) for i, (row, word) in enumerate(zip(rows, order, strict=True))}
        schedule = KnownSchedule(name="", pp=2, micro_batches=2, vpp=vpp)
        of_rank = RankSchedule(stage=0, pipeline=0, passes=passes, messages={})
        return Reading(chain=(0, 1), schedule=schedule, ranks={0: of_rank})

    def chosen(*readings: Reading) -> int | None:
        found = most_alike(readings, {0: rank})
        return None if found is None else found.schedule.vpp

    assert chosen(reading(1, "FBFB"), reading(2, "FFBB")) == 1
    assert chosen(reading(2, "FBFB"), reading(1, "FFBB")) is None


@pytest.mark.parametrize("pp", [2, 3, 4, 5])
def test_schedules_are_counted_before_they_are_laid_out(pp: int) -> None:
    """Laid out, each has as many stretches of work as it was said it may have; few others may have as many,
    or thousands of them were laid out for a step of many micro-batches."""
    every = list(known_schedules(pp, 40))
    for stage in range(pp):
        counts = [len(schedule.groups(stage)[0]) for schedule in every]
        for schedule, count in zip(every, counts, strict=True):
            assert schedule.may_have(stage, count), schedule
    inside = [s for s in every if s.may_have(1, 40)]
    if pp > 2:
        assert {len(s.groups(1)[0]) for s in inside} == {40}
    assert sum(s.may_have(0, 1000) for s in known_schedules(2, 1000)) < 0.1 * 5000
