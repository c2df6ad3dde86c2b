"""The model of a job, worked out by hand: folding, composition, scaling, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from perfdoc.simulator.job.analysis import model_job
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.network import network_of
from perfdoc.simulator.job.predict import build_model, build_models
from perfdoc.simulator.job.scaling import Link, behind_ns, moved_over_dp, work_factors
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.simulator.job.stages import Work, fold
from perfdoc.simulator.work.rank import RankWork
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from tests.simulator.jobs_by_hand import MS, rank_by_hand, traffic_by_hand

LLAMA = known_models()["llama3-8b"]
BASE = JobSettings(
    tp=1,
    cp=1,
    ep=1,
    dp=1,
    pp=1,
    vpp=1,
    micro_batches=4,
    mbs=1,
    messages_overlap=False,
    layers=(4,),
    recompute="none",
    sharded_optimizer=False,
    overlap_reduce=False,
    overlap_gather=False,
)
TWO = replace(BASE, pp=2, layers=(4, 4))


def two_stages(*, last_forward: float = 1 * MS, window: float | None = None) -> list[RankWork]:
    """Forward 1, backward 2, messages 0; the last stage's forward as given."""
    longer = last_forward - 1 * MS
    length = 3 * MS + 4 * (3 * MS + longer) if window is None else window
    message = (traffic_by_hand("pp", "send_recv", 100, 0.0),)
    first = rank_by_hand(rank=0, world=2, window=length, message=0.0, traffic=message)
    last = rank_by_hand(rank=1, world=2, forward=last_forward, message=0.0, traffic=message)
    return [first, last]


def test_a_configuration_of_a_billion_layers_is_no_reason_to_try_as_many_chunks() -> None:
    facts = JobFacts(pp=2, vpp=1, micro_batches=4, model=msgspec.structs.replace(LLAMA, layers=2_000_000_000))
    found = model_job(two_stages(), facts)
    tried = {p.key: p.settings for p in found.predictions}
    # 64 divide 10^9, and the bubble is least with most.
    assert tried["more_virtual_stages"] == {"virtual_pipeline_model_parallel_size": 64}


# The unedited step.


def test_one_stage_is_its_passes_and_the_rest() -> None:
    model = build_model([rank_by_hand(window=12 * MS, after=3 * MS, reduced_after=1 * MS)], BASE, None)
    assert (model.measured_ns, model.modelled_ns, model.error_frac) == (15 * MS, 15 * MS, 0)
    assert model.step_ns(replace(BASE, micro_batches=8)) == 27 * MS
    assert model.step_ns(replace(BASE, mbs=2, micro_batches=2)) == 15 * MS


def test_two_stages_have_the_bubble() -> None:
    """4 micro-batches of 3 ms and one more for the bubble: 15. Two chunks halve the bubble: 13.5."""
    model = build_model(two_stages(), TWO, None)
    assert model.modelled_ns == 15 * MS
    new = replace(TWO, vpp=2, messages_overlap=True)
    assert model.step_ns(new) == 13.5 * MS
    assert [s.origin for s in model.stages] == ["captured", "captured"]
    assert model.window(new).end == (13.5 * MS, 12.5 * MS)


def test_an_output_layer_stays_whole_in_the_last_chunk() -> None:
    """The last stage's forward takes 1 ms longer than the first's: that is no layer. In two chunks its
    forwards take 0.5 and 1.5."""
    model = build_model(two_stages(last_forward=2 * MS), TWO, None)
    last = model.stages[-1]
    assert last.forward_ends.length == pytest.approx(1 * MS)
    assert last.takes(2)[0] == pytest.approx([0.5 * MS, 1.5 * MS])
    assert model.stages[0].takes(2)[0] == [0.5 * MS, 0.5 * MS]


def test_a_first_stage_alone_shows_the_output_layer_by_its_waits() -> None:
    """Its window is that of a last stage with a forward of 2 ms: 3 + 4 x 4 = 19."""
    shape = msgspec.structs.replace(LLAMA, layers=8)
    (first, _) = two_stages(last_forward=2 * MS)
    models = build_models([first], TWO, shape)
    model = models.model
    assert [s.origin for s in model.stages] == ["captured", "composed"]
    assert model.modelled_ns == pytest.approx(19 * MS, rel=1e-6)
    forward, backward = (sum(t) for t in model.stages[1].takes(1))
    # Of the millisecond a third is taken to be forward, by the rate of the GEMMs: 1 to 2.
    assert (forward, backward) == pytest.approx((1 * MS + MS / 3, 2 * MS + 2 * MS / 3), rel=0.01)
    assert model.output_inferred == pytest.approx(MS / 3 / output_by_flops(shape), rel=0.01)


def output_by_flops(shape: object) -> float:
    """A layer's forward takes 0.25 ms of GEMMs: the table, over its parameters, and 15 % for the loss."""
    h, f, v, kv = 4096, 14336, 128_256, 1024
    assert shape is not None
    of_layer = 2 * h * h + 2 * h * kv + 3 * h * f
    return 0.25 * MS * v * h / of_layer * 1.15


def test_a_first_stage_that_waits_for_nothing_composes_no_output_layer() -> None:
    (first, _) = two_stages()
    model = build_model([first], TWO, msgspec.structs.replace(LLAMA, layers=8))
    assert model.output_inferred == 0
    assert model.modelled_ns == 15 * MS


# Folding.


def ranks_of(*windows: float, stages: int = 2) -> list[RankWork]:
    """A job of as many pipelines as windows; forwards take a tenth of the window."""
    world = len(windows) * stages
    return [
        rank_by_hand(rank=stage * len(windows) + i, world=world, window=w, forward=w / 10, passes=1)
        for stage in range(stages)
        for i, w in enumerate(windows)
    ]


def folded(ranks: list[RankWork], settings: JobSettings) -> list[list[int | None]]:
    return [[r.rank for r in stage] for stage in fold(ranks, settings)]


def test_the_slowest_pipeline_stands_for_the_job() -> None:
    ranks = ranks_of(10, 30, 20)
    assert folded(ranks, TWO) == [[1], [4]]
    # Not whole: everything there is.
    assert folded([r for r in ranks if r.rank != 4], TWO) == [[2], [5]]
    assert folded([r for r in ranks if r.rank in (0, 1, 5)], TWO) == [[0, 1], [5]]


def test_pipelines_that_are_as_slow_and_tensor_ranks_are_folded() -> None:
    assert folded(ranks_of(10, 29.99, 30, 20), TWO) == [[1, 2], [5, 6]]
    # Ranks 2 and 3 wait for each other in every pass.
    assert folded(ranks_of(10, 20, 30, 25), replace(TWO, tp=2, dp=2)) == [[2, 3], [6, 7]]


def test_a_stage_has_its_origin_and_spread() -> None:
    ranks = [replace(r, backward=r.forward) for r in ranks_of(30, 30.03)]
    model = build_model(ranks, replace(TWO, dp=2, micro_batches=1), None)
    assert [s.origin for s in model.stages] == ["folded", "folded"]
    assert [s.ranks for s in model.stages] == [(0, 1), (2, 3)]
    assert model.stages[0].spread_frac == pytest.approx(0.001)


def test_a_rank_of_unknown_number_is_no_stage_of_several() -> None:
    with pytest.raises(ValueError, match="--set world_size=N"):
        build_model([rank_by_hand(rank=None, world=2)], TWO, None)
    model = build_model([rank_by_hand(rank=None, world=None, window=12 * MS)], BASE, None)
    assert model.stages[0].origin == "captured"
    assert model.modelled_ns == 12 * MS


# How work scales.


def test_parts_follow_tokens_and_width() -> None:
    base = replace(BASE, tp=4, cp=2, mbs=2)
    work = Work(gemm=8, attention=8, other=8, tp=8, cp=8, ep=0, idle=1, host=3)
    twice = work_factors(base, replace(base, mbs=4), {}).applied(work)
    assert (twice.gemm, twice.attention, twice.other, twice.tp, twice.cp) == (16, 16, 16, 16, 16)
    assert (twice.idle, twice.host) == (1, 3)
    narrow = work_factors(base, replace(base, tp=8), {}).applied(work)
    assert (narrow.gemm, narrow.attention, narrow.other, narrow.cp) == (4, 4, 4, 8)
    assert narrow.tp == pytest.approx(8 * (7 / 8) / (3 / 4))
    # Half the context ranks: twice the tokens, attention over twice the keys less the half of the heads.
    one = work_factors(base, replace(base, cp=1), {}).applied(work)
    assert (one.gemm, one.attention, one.tp, one.cp) == (16, 16, 16, 0)


def test_latency_and_the_fixed_part_of_kernels_stay() -> None:
    base = replace(BASE, tp=2)
    work = Work(gemm=10, tp=10, fixed=2)
    half = work_factors(replace(base, mbs=2), base, {"tp": 0.4}).applied(work)
    assert half.gemm == pytest.approx(2 + 8 / 2)
    assert half.tp == pytest.approx(4 + 6 / 2)
    assert work_factors(base, replace(base, tp=1), {"tp": 0.4}).applied(work).tp == 0


def test_latency_and_bandwidth_by_size() -> None:
    """Gathers of 100 and 500 kB on 4 ranks take 50 and 130 us: 1,200 kB more are moved in 80 us, and 30 us
    of each are latency. What TP takes is of one size: half of it at most, here the tiny all-reduce's 9 us."""
    network = network_of(
        [
            traffic_by_hand("dp", "all_gather", 100_000, 50_000.0),
            traffic_by_hand("dp", "all_gather", 500_000, 130_000.0, count=3),
            traffic_by_hand("tp", "reduce_scatter", 900_000, 90_000.0),
            traffic_by_hand("other", "all_reduce", 4, 9_000.0),
        ],
        {"dp": 4, "tp": 2},
    )
    assert network.latency_frac["dp"] == pytest.approx(4 * 30_000 / (50_000 + 3 * 130_000))
    assert network.latency_frac["tp"] == pytest.approx(0.1)
    assert network.seen_in == "dp"
    assert network.takes(300_000) == pytest.approx(30_000 + 20_000)


def test_without_sizes_nothing_tells_a_bandwidth() -> None:
    network = network_of([traffic_by_hand("dp", "all_reduce", -1, 50.0)], {"dp": 2})
    assert network.latency_frac == {}
    with pytest.raises(ValueError, match="unknown"):
        network.takes(10)


# Data parallelism.


def test_what_of_reducing_and_gathering_is_exposed() -> None:
    link = Link(reduce_ns=8, reductions=4, gather_ns=8, gathers=8)
    assert link.reduction(overlaps=False, backward_ns=5) == 8
    assert link.reduction(overlaps=True, backward_ns=5) == 3
    assert link.reduction(overlaps=True, backward_ns=100) == 2
    assert (link.gathering(overlaps=False), link.gathering(overlaps=True)) == (8, 1)
    # Four layers hide a bucket each, as far as they are as long as one.
    assert link.gathered_in_forward(forward_ns=8, layers=4) == 3
    assert link.gathered_in_forward(forward_ns=2, layers=4) == 5
    assert link.gathered_in_forward(forward_ns=8, layers=100) == 0


def test_gradients_of_experts_are_moved_where_they_have_replicas() -> None:
    shape = known_models()["mixtral-8x7b"]
    base = replace(BASE, dp=4, ep=4)
    dense, experts, table = 1_607_729_152 - 2 * 131_072_000, 45_097_156_608, 131_072_000
    del dense
    whole, shared = moved_over_dp(replace(base, ep=1), shape), moved_over_dp(base, shape)
    assert whole - shared == pytest.approx(experts * 3 / 4, rel=0.01)
    assert moved_over_dp(replace(base, ep=2), shape) - shared == pytest.approx(experts / 2 / 2, rel=0.01)
    assert moved_over_dp(replace(base, ep=2, tp=2), shape) == moved_over_dp(replace(base, ep=2), shape) / 2
    assert table > 0


def test_overlap_of_the_reduction() -> None:
    """Four buckets of 1 ms behind the passes; beside a backward of 2: 2 ms are left, not 4."""
    reduce = (traffic_by_hand("dp", "all_reduce", 10**6, 1 * MS, count=4),)
    rank = rank_by_hand(window=12 * MS, after=6 * MS, reduced_after=4 * MS, traffic=reduce)
    model = build_model([rank], replace(BASE, dp=2), None)
    assert model.measured_ns == 18 * MS
    assert model.step_ns(replace(model.settings, overlap_reduce=True)) == 16 * MS
    # On 4 replicas 3/4 of the gradients are moved, not 1/2.
    assert model.step_ns(replace(model.settings, dp=4)) == 20 * MS


def test_waiting_for_a_replica_shows_against_the_gathers_rate() -> None:
    gather = traffic_by_hand("dp", "all_gather", 10**6, 1 * MS)
    for took, waits in ((4 * MS, 2 * MS), (2 * MS, 0.0)):
        reduce = traffic_by_hand("dp", "reduce_scatter", 2 * 10**6, took)
        rank = rank_by_hand(window=12 * MS, after=took + 1 * MS, reduced_after=took, traffic=(gather, reduce))
        assert behind_ns(rank) == waits
    assert behind_ns(rank_by_hand(window=12 * MS, traffic=(reduce,))) == 0


# What it refuses.


def model_of_two() -> JobModel:
    return build_model(two_stages(), TWO, msgspec.structs.replace(LLAMA, layers=8))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vpp": 3, "layers": (4, 4)}, "4 layers of a stage do not divide into 3 chunks"),
        ({"vpp": 2, "micro_batches": 3}, "not a multiple of 2 stages"),
        ({"cp": 2}, "no communication over CP was captured"),
        ({"ep": 2}, "no communication over EP was captured"),
        ({"pp": 4}, "2 stages of layers for PP 4"),
        ({"tp": 3}, "TP 3 does not divide 32 heads"),
        ({"tp": 2}, "unknown"),
        ({"micro_batches": 10**7}, "passes is too long"),
        ({"micro_batches": 0}, "below 1"),
        ({"tp": 0}, "below 1"),
        ({"vpp": -1}, "below 1"),
        ({"pp": 1, "layers": (8,), "vpp": 2}, "more than one stage"),
        ({"layers": (0, 0), "vpp": 2}, "number of layers is unknown"),
    ],
)
def test_what_cannot_be_modelled_says_why(change: dict[str, object], said: str) -> None:
    model = model_of_two()
    with pytest.raises(ValueError, match=said):
        model.step_ns(replace(TWO, **change))  # type: ignore[arg-type]


def test_a_model_that_is_off_predicts_nothing() -> None:
    models = build_models([rank_by_hand(window=12 * MS)], BASE, None)
    assert models.withheld == ""
    off = replace(models, model=replace(models.model, rest_ns=2 * MS))
    assert "+16.7%" in off.withheld
