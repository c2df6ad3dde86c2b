"""The settings that a job was captured with: given, inferred, contradicted, unknown."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.simulator.job.settings import JobSettings, captured_settings, spread_layers
from perfdoc.simulator.work.rank import RankWork
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from tests.simulator.jobs_by_hand import rank_by_hand, traffic_by_hand

MODEL = msgspec.structs.replace(known_models()["llama3-8b"], layers=10)
FACTS = JobFacts(pp=4, vpp=1, micro_batches=8, model=MODEL)
MESSAGES = (traffic_by_hand("pp", "send_recv", 100, 1.0),)


def settings(facts: JobFacts, *ranks: RankWork, overlap: bool | None = None) -> JobSettings:
    return captured_settings(ranks or (rank_by_hand(passes=8, traffic=MESSAGES),), facts, overlap)


def test_what_is_given() -> None:
    facts = JobFacts(
        tp=2, cp=3, ep=5, dp=7, pp=4, vpp=2, micro_batches=4, micro_batch_sequences=6, recompute="full"
    )
    found = settings(facts)
    assert (found.tp, found.cp, found.ep, found.dp, found.pp) == (2, 3, 5, 7, 4)
    assert (found.vpp, found.micro_batches, found.mbs, found.recompute) == (2, 4, 6, "full")
    assert (found.world, found.replicas, found.tokens) == (2 * 3 * 7 * 4, 21, 2.0)
    assert found.messages_overlap
    assert found.layers == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("facts", "vpp", "micro_batches"),
    [
        (JobFacts(pp=4, vpp=2), 2, 4),
        (JobFacts(pp=4, micro_batches=8), 1, 8),
        (JobFacts(pp=4, micro_batches=2), 4, 2),
        (JobFacts(pp=1), 1, 8),
    ],
)
def test_what_follows_from_eight_forwards(facts: JobFacts, vpp: int, micro_batches: int) -> None:
    found = settings(facts)
    assert (found.vpp, found.micro_batches) == (vpp, micro_batches)


@pytest.mark.parametrize(
    ("leading", "stage", "vpp", "micro_batches"),
    [
        # Of 4 stages the first is 3 forwards ahead and runs one more; with two chunks 2 x 3 + 4 and one more.
        (4, 0, 1, 16),
        (11, 0, 2, 8),
        (1, 3, 1, 16),
        (5, 3, 2, 8),
        # Of 4 chunks all forwards come first, and so they do where a schedule without chunks runs them so.
        (16, 0, None, None),
        (7, 0, None, None),
        (None, 0, None, None),
    ],
)
def test_what_the_order_of_sixteen_forwards_shows(
    leading: int | None, stage: int, vpp: int | None, micro_batches: int | None
) -> None:
    ranks = rank_by_hand(rank=2 * stage, world=8, passes=16, traffic=MESSAGES, leading=leading)
    if vpp is None:
        with pytest.raises(ValueError, match="--set vpp=N"):
            settings(JobFacts(pp=4), ranks)
    else:
        found = settings(JobFacts(pp=4), ranks)
        assert (found.vpp, found.micro_batches) == (vpp, micro_batches)


def test_numbers_of_micro_batches_come_before_their_order() -> None:
    numbered = replace(rank_by_hand(rank=0, world=8, passes=16, traffic=MESSAGES, leading=4), micro_batches=8)
    found = settings(JobFacts(pp=4), numbered)
    assert (found.vpp, found.micro_batches) == (2, 8)


def test_stages_from_the_group_and_from_there_being_no_message() -> None:
    grouped = rank_by_hand(passes=8, traffic=MESSAGES, group=(0, 4, 8))
    assert settings(JobFacts(vpp=1), grouped).pp == 3
    assert settings(JobFacts(), rank_by_hand(passes=8)).pp == 1


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (JobFacts(vpp=1), "--set pp=N"),
        (JobFacts(pp=4), "--set vpp=N"),
        (JobFacts(pp=4, vpp=2, micro_batches=8), "8 forward passes in a step, not 8 micro-batches x 2"),
        (JobFacts(pp=4, vpp=3), "8 forward passes in a step, not 2 micro-batches x 3"),
        (JobFacts(pp=4, micro_batches=10**9), "8 forward passes"),
        (JobFacts(pp=10**9, vpp=1), "1,000,000,000 pipeline stages"),
        (JobFacts(pp=-4, vpp=1), "-4 pipeline stages"),
        (JobFacts(pp=0, vpp=0, micro_batches=0), "--set pp=N"),
    ],
)
def test_what_is_unknown_or_contradicts_is_named(facts: JobFacts, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(facts)


def test_ranks_that_disagree() -> None:
    with pytest.raises(ValueError, match=r"different numbers of forward passes: \[4, 8\]"):
        settings(FACTS, rank_by_hand(passes=8), rank_by_hand(passes=4))


@pytest.mark.parametrize(
    ("vpp", "said", "overlaps"),
    [(1, None, False), (1, True, False), (2, None, True), (2, True, True), (2, False, False)],
)
def test_messages_overlap_with_interleaving_only(vpp: int, said: bool | None, overlaps: bool) -> None:
    assert settings(JobFacts(pp=4, vpp=vpp), overlap=said).messages_overlap is overlaps


def test_layers_even_and_as_ranges_name_them() -> None:
    assert spread_layers(10, 4) == (3, 3, 2, 2)
    assert settings(FACTS).layers == (3, 3, 2, 2)
    named = replace(rank_by_hand(rank=2, world=4, passes=8, traffic=MESSAGES), layers=(5, 6, 7))
    assert settings(FACTS, named).layers == (3, 3, 3, 2)
    unknown = replace(FACTS, model=None)
    assert settings(unknown, named).layers == (3, 3, 3, 3)
    other = replace(rank_by_hand(rank=0, world=4, passes=8, traffic=MESSAGES), layers=(0, 1))
    assert settings(unknown, named, other).layers == (0, 0, 0, 0)
    assert settings(unknown).layers == (0, 0, 0, 0)


def test_overlap_over_dp_is_where_most_of_it_starts() -> None:
    def of(*inside: float) -> JobSettings:
        names = ("reduce_scatter", "all_gather")
        traffic = [
            traffic_by_hand("dp", n, 100, 1.0, count=4, inside=f) for n, f in zip(names, inside, strict=True)
        ]
        return settings(FACTS, rank_by_hand(passes=8, traffic=(*MESSAGES, *traffic)))

    both = of(0.75, 0.25)
    assert (both.sharded_optimizer, both.overlap_reduce, both.overlap_gather) == (True, True, False)
    assert of(0.5, 0.75).overlap_gather
    assert not of(0.5, 0.75).overlap_reduce
    none = settings(FACTS)
    assert (none.sharded_optimizer, none.overlap_reduce, none.overlap_gather) == (False, False, False)
