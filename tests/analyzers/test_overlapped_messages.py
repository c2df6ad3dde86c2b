"""Interleaved pipelines whose messages run beside work, on streams of their own, without ranges of passes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.base.intervals import union
from perfdoc.analyzers.pipeline.events import find_events, where_posted
from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule, find_schedule
from perfdoc.simulator.recorded.build import recorded_job
from perfdoc.simulator.recorded.walk import plan_of, step_ends
from tests.amount import some
from tests.analyzers.device_views import view_of
from tests.analyzers.planted_checks import Diagnosed, check_pipeline, diagnosed
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu
from tests.planted.job import KINDS, JobSpec, planted_steps
from tests.planted.schedule import order_of
from tests.planted.spec import Late

JOBS = {
    "two stages": replace(KINDS["pp2_vpp2_dp2"], late=Late(rank=1, extra_ns=400_003)),
    "four chunks": JobSpec(pp=4, vpp=4, micro_batches=4, late=Late(rank=2, extra_ns=400_003)),
    # Of so few the first stage runs all forwards first, as another schedule does on all stages.
    "as many micro-batches as stages": JobSpec(
        pp=2, vpp=2, micro_batches=2, stage_extra_ns=(300_001, 0), late=Late(rank=1, extra_ns=100_003)
    ),
    # Sends queue behind one another, and start long after the pass that they are of.
    "slow messages": replace(
        KINDS["pp4_vpp2_dp2"], pp_transfer_ns=900_011, late=Late(rank=3, extra_ns=400_003)
    ),
}


def operations(found: Diagnosed) -> list[RankOperations]:
    return [r.operations for c in found.captures for r in c.ranks]


def check_passes(ranks: Sequence[RankOperations], schedule: JobSchedule, spec: JobSpec) -> None:
    count = spec.micro_batches
    assert (schedule.reason, schedule.pp, schedule.vpp, schedule.micro_batches) == (
        *("", spec.pp, spec.vpp),
        count,
    )
    for rank, found in zip(ranks, schedule.ranks, strict=True):
        assert found is not None
        assert found.stage == (rank.rank or 0) // spec.dp
        order, _ = order_of(pp=spec.pp, vpp=spec.vpp, stage=found.stage, micro_batches=count)
        planned = [(p.forward, p.chunk * count + p.micro_batch) for p in order]
        assert [p for i in sorted(found.passes) for p in found.passes[i]] == planned


@pytest.mark.parametrize("name", JOBS)
def test_passes_and_what_a_late_rank_costs(name: str, tmp_path: Path) -> None:
    spec = replace(JOBS[name], micro_batch_ranges=False)
    found = diagnosed(spec, tmp_path)
    ranks = operations(found)
    schedule = find_schedule(ranks)
    check_passes(ranks, schedule, spec)
    assert found.found.analyses.what_if.state == "measured"
    # The replay without what makes the rank late is the job without it.
    job = recorded_job(ranks, schedule, found.aligned()[0])
    assert job is not None
    plan = plan_of(job.cells, job.of_member)
    assert plan is not None
    late = spec.lates[0]
    extra = [
        late.extra_ns * sum(forward for forward, _ in c.passes) * (c.member == late.rank) for c in job.cells
    ]
    with_it, without = step_ends(plan, [job.takes, job.takes - np.array(extra)[:, None]]).mean(axis=1)
    truth = planted_steps(spec).step_ns - planted_steps(replace(spec, late=None)).step_ns
    assert with_it - without == pytest.approx(truth, abs=100)


@pytest.mark.parametrize("extra_ns", [800_003, 1_600_006])
def test_two_steps_that_differ_are_read_as_one_of_them(extra_ns: int, tmp_path: Path) -> None:
    """The mean over two steps is an order that neither had: it was read as 23 micro-batches of 1F1B."""
    spec = JobSpec(
        pp=2,
        vpp=3,
        micro_batches=4,
        steps=2,
        forward_ns=1_500_000,
        backward_ns=1_500_000,
        output_ns=(400_001, 800_003),
        late=Late(rank=0, extra_ns=extra_ns, steps=(1,)),
        pp_transfer_ns=10_007,
        micro_batch_ranges=False,
    )
    ranks = operations(diagnosed(spec, tmp_path))
    check_passes(ranks, find_schedule(ranks), spec)


def drawn(seed: int) -> JobSpec:
    """Two steps, of which the second has a late rank."""
    draw = random.Random(seed)
    pp, forward_ns = draw.choice((2, 4)), draw.choice((400_003, 1_000_003, 1_500_001))
    late = Late(
        rank=draw.randrange(pp), extra_ns=round(forward_ns * draw.choice((0.1, 0.3, 0.6, 1.0))), steps=(1,)
    )
    return JobSpec(
        pp=pp,
        vpp=draw.choice((2, 3)),
        micro_batches=pp * draw.choice((1, 2)),
        steps=2,
        forward_ns=forward_ns,
        backward_ns=draw.choice((1, 2)) * forward_ns,
        late=late,
        pp_transfer_ns=draw.choice((10_007, 100_003, 900_011)),
        micro_batch_ranges=False,
    )


@pytest.mark.parametrize("block", some(range(4), {0}))
def test_a_rank_that_is_late_in_one_of_two_steps(block: int, tmp_path: Path) -> None:
    """Of ten random jobs all are read right: what is usual over two steps is that of one. With the mean over
    two, three of the first ten were silent."""
    for seed in range(10 * block, 10 * (block + 1)):
        spec = drawn(seed)
        (folder := tmp_path / str(seed)).mkdir()
        ranks = operations(diagnosed(spec, folder))
        check_passes(ranks, find_schedule(ranks), spec)


@pytest.mark.parametrize("kind", ["pp2_vpp2_dp2", "pp4_vpp2_dp2"])
def test_bubbles_without_ranges(kind: str, tmp_path: Path) -> None:
    check_pipeline(diagnosed(replace(KINDS[kind], micro_batch_ranges=False), tmp_path))


@pytest.mark.parametrize("name", ["two stages", "four chunks"])
def test_one_stream_for_each_peer_whose_sends_are_named(name: str, tmp_path: Path) -> None:
    """PyTorch names sends and receives, and gives each pair of ranks a communicator."""
    spec = replace(JOBS[name], micro_batch_ranges=False)
    ranks = operations(diagnosed(spec, tmp_path))
    schedule = find_schedule(ranks)
    named = []
    for rank, one in zip(ranks, schedule.ranks, strict=True):
        assert one is not None
        sent = {i for i, (key,) in ((i, tuple(k)) for i, k in one.messages.items()) if key[1] == one.stage}
        words = [
            ("send" if i in sent else "recv") if kind == MESSAGE else word
            for i, (kind, word) in enumerate(zip(rank.kind.tolist(), rank.operation, strict=True))
        ]
        lane = np.where(rank.kind == MESSAGE, rank.peer, rank.lane)
        named.append(replace(rank, operation=tuple(words), lane=lane))
    check_passes(named, find_schedule(named), spec)


def test_a_pass_that_began_before_its_input_came_is_none(tmp_path: Path) -> None:
    spec = replace(JOBS["four chunks"], micro_batch_ranges=False)
    ranks = operations(diagnosed(spec, tmp_path))
    one = find_schedule(ranks).ranks[1]
    assert one is not None
    assert one.needs
    work, (message, *_) = list(one.needs.items())[5]
    late = ranks[1].duration_ns.copy()
    late[message] += ranks[1].start_ns[work] - ranks[1].start_ns[message] - late[message] + 50_000
    ranks[1] = replace(ranks[1], duration_ns=late)
    assert find_schedule(ranks).reason == "the messages of a step fit no schedule that is known"


def test_what_is_received_while_earlier_work_runs_was_asked_for_behind_it(tmp_path: Path) -> None:
    """The host is ahead: it asks for the next input behind a pass that runs until 90 us, and the stream of
    messages, which is free, begins at 20 us."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 10_000, 90_000, launch=(thread, 0, 1_000))
    device.kernel("ncclDevKernel_SendRecv", 20_000, 60_000, stream=20, launch=(thread, 2_000, 3_000))
    device.kernel(GEMM, 90_000, 170_000, launch=(thread, 4_000, 5_000))
    view = view_of(builder, tmp_path)
    start, one = np.array([[20_000]]), np.array([[0]])
    assert where_posted(view, one, start, np.array([True])).tolist() == [[90_000]]
    assert where_posted(view, one, start, np.array([False])).tolist() == [[20_000]]


def test_what_is_asked_for_behind_work_beyond_its_end_is_waited_for_there() -> None:
    """As above, the passes one after the other or 500 ns apart: the message ends at 60 us, and nothing waits
    for it before the work in front of it is done."""
    start, end, posted = (np.array([[us * 1_000]]) for us in (20, 60, 90))
    for apart in (0, 500):
        work = union(np.array([10_000, 90_000 + apart]), np.array([90_000, 170_000]))
        found = find_events((start, end, posted), np.array([0]), np.array([[True]]), work)
        assert found.is_wait.tolist() == [False, True]
        assert found.begin_ns.tolist() == found.end_ns.tolist() == [[90_000, 90_000]]
