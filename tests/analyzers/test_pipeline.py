"""Pipelines of planted jobs: bubble, transfer, handover and late peer as they were laid."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.job import measure_pipeline
from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.pipeline.recorded_passes import SOURCE
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.traces.job_facts import JobFacts
from tests.amount import some
from tests.analyzers.pipeline_ranks import RankOffsets, pipeline_ranks
from tests.planted.job import KINDS, JobSpec, PlantedJob, planted_job
from tests.planted.spec import Late

PARTS = ("own_ns", "idle_ns", "bubble_ns", "transfer_ns", "handover_ns", "late_peer_ns")
ON_ONE_CLOCK = RankOffsets(offset_ns=[0] * 8)
PP4, VPP, TP, ALL = (KINDS[n] for n in ("pp4", "pp4_vpp2_dp2", "tp2_pp2_dp2", "tp2_cp2_ep2_pp2"))

JOBS: dict[str, JobSpec] = {
    "balanced": PP4,
    "messages beside compute": KINDS["pp2_vpp2_dp2"],
    "all dimensions": ALL,
    "a slow rank": replace(PP4, late=Late(rank=2, extra_ns=400_003)),
    "slow in one step": replace(PP4, late=Late(rank=1, extra_ns=400_003, steps=(1,))),
    "a slow rank of one replica": replace(TP, late=Late(rank=2, extra_ns=400_003)),
    "slow, messages beside compute": replace(VPP, late=Late(rank=2, extra_ns=300_001)),
    "last stage has more to do": replace(PP4, stage_extra_ns=(0, 0, 0, 500_009)),
    "first stage has more to do": replace(PP4, stage_extra_ns=(500_009, 0, 0, 0)),
    "gaps around messages": replace(PP4, pp_handover_ns=1_703),
    "messages longer than passes": replace(PP4, pp_transfer_ns=900_011),
    "the same beside compute": replace(VPP, pp_transfer_ns=900_011),
    "fewer micro-batches than stages": replace(PP4, micro_batches=2),
    "nothing names passes": replace(TP, micro_batch_ranges=False),
}


@functools.cache
def laid(spec: JobSpec) -> tuple[PlantedJob, list[PipelineRank]]:
    job = planted_job(spec)
    with tempfile.TemporaryDirectory() as folder:
        return job, pipeline_ranks(job.write(Path(folder)))


def truth_of(job: PlantedJob, rank: int | None) -> dict[str, int]:
    stages = [s for p in job.answer.pipelines for s in p.stages if s.rank == rank]
    return {part: sum(getattr(s, part) for s in stages) for part in PARTS}


@pytest.mark.parametrize(
    "name", some(JOBS, ["balanced", "a slow rank of one replica", "messages beside compute"])
)
def test_every_part_is_given_back_to_the_nanosecond(name: str) -> None:
    job, ranks = laid(JOBS[name])
    found = measure_pipeline(ranks, job.facts(), ON_ONE_CLOCK)
    assert (found.state, found.scope, found.matched_frac) == ("measured", "job", 1.0)
    assert (found.steps, found.pipelines) == (job.spec.steps, job.spec.world_size // job.spec.pp)
    assert len(found.stages) == job.spec.world_size
    for row in found.stages:
        assert {part: getattr(row, part) for part in PARTS} == truth_of(job, row.rank)
        assert row.stage == job.answer.ranks[row.rank or 0].stage
        assert row.own_ns + row.idle_ns == row.window_ns
    windows = [(p.end_ns - p.start_ns) * len(p.ranks) for p in job.answer.pipelines]
    assert found.window_ns == sum(windows)
    assert found.step_ns == sum(int((r.step_end_ns - r.step_start_ns).sum()) for r in ranks)
    by_rank = {r.rank: int(r.compute_ns.sum()) for r in ranks}
    assert {row.rank: row.compute_ns for row in found.stages} == by_rank
    # The critical path is made of stages' own time, transfer and handover, and is as long as the window.
    for stages in {p.ranks for p in job.answer.pipelines}:
        rows = [r for r in found.stages if r.rank in stages]
        path = sum(r.path_ns or 0 for r in rows) + rows[0].transfer_ns + rows[0].handover_ns
        # Messages that are longer than passes are on it in full, and only in part what stages idle for.
        assert path == rows[0].window_ns or (path < rows[0].window_ns and job.spec.pp_transfer_ns > 800_000)


def test_shares_are_of_the_pipelines_window() -> None:
    # Four equal stages, eight micro-batches: 3 / 8 of the own time is bubble, and what messages add is not.
    job, ranks = laid(PP4)
    found = measure_pipeline(ranks, job.facts(), ON_ONE_CLOCK)
    truth = [truth_of(job, r) for r in range(4)]
    window = sum(t["own_ns"] + t["idle_ns"] for t in truth)
    assert found.bubble_frac == pytest.approx(sum(t["bubble_ns"] for t in truth) / window)
    assert found.transfer_frac == pytest.approx(sum(t["transfer_ns"] for t in truth) / window)
    assert found.ideal_bubble_frac == pytest.approx(3 / 11)
    assert (found.late_peer_frac, found.handover_frac, found.slowest_rank) == (0.0, 0.0, None)
    assert [s.role for s in found.stages] == ["embedding", "middle", "middle", "loss"]
    assert found.stages[0].compute_ns == found.stages[0].own_ns == truth[0]["own_ns"]
    # A norm of 20,011 follows the kernel of 800,000 or 1,500,000.
    assert (found.stages[0].forward_ns, found.stages[0].backward_ns) == (820_011, 1_520_011)


@pytest.mark.parametrize(
    ("name", "stage", "rank"),
    some(
        [
            ("a slow rank", 2, 2),
            ("slow in one step", 1, 1),
            ("last stage has more to do", 3, 3),
            ("first stage has more to do", 0, 0),
            ("a slow rank of one replica", 0, 2),
        ],
        lambda case: (
            case[0] in ("slow in one step", "last stage has more to do", "a slow rank of one replica")
        ),
    ),
)
def test_who_was_late(name: str, stage: int, rank: int) -> None:
    job, ranks = laid(JOBS[name])
    found = measure_pipeline(ranks, job.facts(), ON_ONE_CLOCK)
    late = sum(s.late_peer_ns for s in found.stages)
    assert late > 0
    assert (found.slowest_stage, found.slowest_rank) == (stage, rank)
    assert found.slowest_over_mean == max(s.own_over_mean or 0 for s in found.stages) > 1.01
    assert found.imbalance_ns is not None
    if job.spec.stage_extra_ns:
        # Stages that differ are all there is. The schedule is laid out on mean passes, in fractions of a ns.
        assert found.imbalance_ns == pytest.approx(late, abs=3 * len(ranks) * found.steps)
    if name == "a slow rank of one replica":
        # The mean over both replicas shows half of it; what is left came late by itself.
        assert found.imbalance_ns == pytest.approx(late / 2, rel=0.001)


def test_all_ranks_in_one_file_need_no_alignment() -> None:
    job, ranks = laid(replace(KINDS["pp2_vpp2_dp2"], one_file=True))
    found = measure_pipeline(ranks, job.facts())
    assert (found.scope, found.uncertainty_ns) == ("job", 0)
    for row in found.stages:
        assert {part: getattr(row, part) for part in PARTS} == truth_of(job, row.rank)


CLOCKS = tuple(Clock(session_start_ns=1_000_000 * i) for i in range(4))


@pytest.mark.parametrize("error_ns", [0, 3_000])
def test_clocks_that_are_off(error_ns: int) -> None:
    job, ranks = laid(replace(JOBS["a slow rank"], clocks=CLOCKS))
    # Sessions that start a millisecond apart; the alignment is wrong by up to error_ns, back and forth.
    wrong = [error_ns * (-1) ** i for i in range(4)]
    common = RankOffsets(offset_ns=[-1_000_000 * i + e for i, e in enumerate(wrong)], resolution_ns=error_ns)
    found = measure_pipeline(ranks, job.facts(), common)
    assert (found.state, found.uncertainty_ns) == ("measured", 2 * error_ns)
    for row in found.stages:
        truth = truth_of(job, row.rank)
        assert abs(row.idle_ns - truth["idle_ns"]) <= 2 * error_ns * row.steps
        assert abs(row.bubble_ns - truth["bubble_ns"]) <= 4 * error_ns * row.steps
        assert abs(row.late_peer_ns - truth["late_peer_ns"]) <= 40 * error_ns * row.steps
        assert row.bubble_ns + row.transfer_ns + row.handover_ns + row.late_peer_ns == row.idle_ns
        if error_ns == 0:
            assert {part: getattr(row, part) for part in PARTS} == truth


def test_what_clocks_leave_open_is_not_claimed() -> None:
    job, ranks = laid(PP4)
    # Nineteen messages of 30 us are on the critical path.
    vague = measure_pipeline(ranks, job.facts(), RankOffsets(offset_ns=[0] * 4, resolution_ns=50_000))
    assert (vague.state, vague.transfer_frac, vague.late_peer_frac) == ("measured", None, None)
    assert vague.bubble_frac is not None
    assert vague.reason == "transfer, late peer within clock error"
    assert "one nsys session" in vague.remedy
    # Each stage idles 7.6 ms a step, and two ends of a window may each be wrong by 4 ms.
    blind = measure_pipeline(ranks, job.facts(), RankOffsets(offset_ns=[0] * 4, resolution_ns=4_000_000))
    assert (blind.state, blind.bubble_frac, blind.stages) == ("not_measured", None, [])
    assert "7.590 ms" in blind.reason
    assert blind.ideal_bubble_frac == pytest.approx(3 / 11)


def test_messages_that_end_before_they_are_sent_show_that_clocks_are_off() -> None:
    # The second stage of each pipeline is 900 us off, and the alignment says 1 us. Where a receive waits for
    # its send it ends 30,007 after that; so the first stage's seem to end 869,993 before.
    job, ranks = laid(TP)
    apart = RankOffsets(offset_ns=[0] * 4 + [-900_000] * 4, resolution_ns=1_000)
    found = measure_pipeline(ranks, job.facts(), apart)
    assert found.uncertainty_ns == 2 * 869_993
    assert (found.transfer_frac, found.late_peer_frac) == (None, None)
    assert found.bubble_frac == pytest.approx(0.2, abs=0.03)


def test_ranks_by_themselves_show_what_comes_before_their_last_message() -> None:
    job, ranks = laid(PP4)
    found = measure_pipeline(ranks, job.facts())
    assert (found.state, found.scope, found.late_peer_frac) == ("measured", "rank", None)
    assert "whether a peer was late" in found.reason
    assert found.ideal_bubble_frac == pytest.approx(3 / 11)
    assert found.notes == ["each rank alone: the stages are in captures whose clocks were not compared"]
    truth = [truth_of(job, r) for r in range(4)]
    # The first stage begins the window and ends it: nothing is hidden from it.
    assert found.stages[0].idle_ns == truth[0]["idle_ns"]
    for stage in range(4):
        # After a stage's last send come a backward and a transfer for each stage before it, the last one's
        # transfer aside: that send was the first of them.
        missed = stage * 1_520_011 + max(0, stage - 1) * 30_007
        assert truth[stage]["idle_ns"] - found.stages[stage].idle_ns == 3 * missed
        assert found.stages[stage].own_ns == truth[stage]["own_ns"]
    one = measure_pipeline(ranks[1:2], job.facts())
    assert (one.scope, len(one.stages), one.stages[0].stage) == ("rank", 1, 1)
    assert "not all stages" in one.notes[0]


def test_the_stage_of_a_single_rank_by_its_warm_up() -> None:
    job, ranks = laid(PP4)
    alone = [replace(r, group=(), rank=None) for r in ranks]
    for stage, rank in enumerate(alone):
        found = measure_pipeline([rank], job.facts())
        assert found.stages[0].stage == stage
        assert found.sources["stages"] == "passes before the first backward"


def test_stages_by_rank_numbers_and_messages_by_their_ends() -> None:
    job, ranks = laid(TP)
    plain = measure_pipeline(ranks, job.facts(), ON_ONE_CLOCK)
    none = np.empty(0, np.int64)
    bare = [
        replace(
            r,
            group=(),
            messages=replace(
                r.messages,
                part_row=none,
                part_sends=none.astype(bool),
                part_peer=none,
                part_number=none,
                part_channel=none,
            ),
        )
        for r in ranks
    ]
    found = measure_pipeline(bare, job.facts(), ON_ONE_CLOCK)
    assert found.sources["stages"] == "rank numbers, stages outermost"
    assert found.matched_frac == 1.0
    assert found.stages == plain.stages


def test_a_communicator_of_two_stages_is_theirs_alone() -> None:
    # PyTorch makes one for each pair that sends and receives by itself: stages 2 and 3 are its ranks 0 and 1.
    job, ranks = laid(PP4)
    plain = measure_pipeline(ranks, job.facts(), ON_ONE_CLOCK)
    paired = []
    for stage, rank in enumerate(ranks):
        m = rank.messages
        peers = m.part_peer.tolist()
        pairs = [(min(stage, peer), max(stage, peer)) for peer in peers]
        channels = sorted(set(pairs))
        m = replace(
            m,
            part_peer=np.array([int(peer > stage) for peer in peers]),
            part_channel=np.array([channels.index(p) for p in pairs]),
            channels=tuple(1000 + 10 * a + b for a, b in channels),
        )
        paired.append(replace(rank, messages=m))
    assert measure_pipeline(paired, job.facts(), ON_ONE_CLOCK) == plain
    # With clocks a millisecond apart nothing can be matched by its end.
    apart = RankOffsets(offset_ns=[0, 1_000_000, 0, 1_000_000])
    assert measure_pipeline(paired, job.facts(), apart).matched_frac == 1.0
    unnamed = [
        replace(r, messages=replace(r.messages, channels=tuple(0 for _ in r.messages.channels)))
        for r in paired
    ]
    assert (measure_pipeline(unnamed, job.facts(), apart).matched_frac or 0) < 1.0


def test_numbers_tell_messages_apart_where_one_is_missing() -> None:
    job, ranks = laid(PP4)
    apart = RankOffsets(offset_ns=[0, 1_000_000, 0, 1_000_000])

    def matched(*, numbered: bool) -> float | None:
        found = []
        for rank in ranks:
            m = rank.messages
            keys = list(zip(m.part_sends.tolist(), m.part_peer.tolist(), strict=True))
            number = [keys[:i].count(k) if numbered else -1 for i, k in enumerate(keys)]
            kept = np.arange(len(keys)) > (0 if rank.rank == 0 else -1)
            parts = {
                name: getattr(m, name)[kept]
                for name in ("part_row", "part_sends", "part_peer", "part_channel")
            }
            m = replace(m, part_number=np.array(number)[kept], **parts)
            found.append(replace(rank, messages=m))
        return measure_pipeline(found, job.facts(), apart).matched_frac

    total = sum(len(r.messages) for r in ranks)
    assert matched(numbered=True) == pytest.approx(1 - 2 / total), "the first send, on either side"
    assert (matched(numbered=False) or 0) < 1 - 2 / total


def test_the_layout_comes_from_the_capture_where_it_can() -> None:
    job, ranks = laid(PP4)
    found = measure_pipeline(ranks, JobFacts(), ON_ONE_CLOCK)
    assert (found.pp, found.vpp, found.micro_batches) == (4, 1, 8)
    assert found.sources == {
        "pp": "group marks",
        "micro_batches": "ranges",
        "vpp": "ranges",
        "stages": "group marks",
    }
    given = measure_pipeline(ranks, replace(job.facts(), micro_batches=4, sources={"pp": "--set"}))
    assert given.sources["pp"] == "--set"
    assert "8 forward passes in a step, not 1 x 4" in given.notes[0]
    _, unnamed = laid(JOBS["nothing names passes"])
    missing = measure_pipeline(unnamed, JobFacts(), ON_ONE_CLOCK)
    assert (missing.state, missing.pp) == ("not_measured", 2)
    assert missing.reason == "pipeline layout unknown: vpp, micro_batches"
    assert missing.remedy == "Give it: --set vpp=N micro_batches=N"


def test_micro_batches_are_those_of_the_schedule_where_messages_tell_some_passes_only() -> None:
    """Of a step's four forward and four backward passes two each: between the others no message lies, nor
    another kernel. The layout has four micro-batches, of which the bubble is 1 / (4 + 1)."""
    _, ranks = laid(JOBS["nothing names passes"])
    first = ranks[0]
    some_of = Passes(
        step=np.array([0, 0, 0, 0]),
        is_forward=np.array([True, True, False, False]),
        micro_batch=np.array([0, 1, 2, 3]),
        start_ns=first.step_start_ns[[0]] + np.arange(4),
        end_ns=first.step_start_ns[[0]] + np.arange(1, 5),
    )
    told = [replace(first, passes=some_of, passes_source=SOURCE), *ranks[1:]]
    schedule = JobSchedule(reason="", pp=2, vpp=1, micro_batches=4)
    found = measure_pipeline(told, JobFacts(), ON_ONE_CLOCK, schedule)
    assert (found.pp, found.vpp, found.micro_batches) == (2, 1, 4)
    assert found.ideal_bubble_frac == pytest.approx(1 / 5)


def test_jobs_without_a_pipeline() -> None:
    job, ranks = laid(replace(KINDS["dp4"], steps=1))
    assert measure_pipeline(ranks, job.facts()).reason == "the job has no pipeline parallelism"
    unknown = measure_pipeline(ranks, JobFacts())
    assert unknown.state == "not_measured"
    assert unknown.reason == "no communication of the capture is known to be pipeline parallelism"
    assert unknown.remedy
    assert measure_pipeline([], JobFacts()).reason == "no rank was given"
