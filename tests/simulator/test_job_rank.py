"""What a captured rank says of its stage, each figure worked out from what was laid."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.job.stages import Work
from perfdoc.simulator.work.rank import GROUPS, RankWork, rank_work
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder
from tests.planted.job import planted_steps
from tests.planted.spec import JobSpec
from tests.simulator.jobs_by_hand import rank_by_hand
from tests.simulator.modelled import works_of

SPEC = JobSpec(tp=2, pp=2, dp=2, micro_batches=4)
FORWARD_GEMMS, FORWARD_NORMS = 800_000 + 300_007, 20_011 + 29_017
BACKWARD_GEMMS, BACKWARD_NORMS = 1_500_000 + 600_014, 20_011 + 29_017
FORWARD = FORWARD_GEMMS + FORWARD_NORMS + 120_001  # the reduce-scatter behind them has nothing beside it
BACKWARD = BACKWARD_GEMMS + BACKWARD_NORMS + 240_002
MESSAGE = 30_007


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[RankWork]:
    """Rank 0 of the first stage and rank 4 of the second."""
    return works_of(SPEC, planted_steps(SPEC, (0, 4)), tmp_path_factory.mktemp("stages"))


def test_passes(stages: list[RankWork]) -> None:
    for rank in stages:
        ways = (
            (rank.forward, FORWARD, FORWARD_GEMMS, FORWARD_NORMS, 120_001),
            (rank.backward, BACKWARD, BACKWARD_GEMMS, BACKWARD_NORMS, 240_002),
        )
        for work, length, gemms, norms, exposed in ways:
            assert work.length_ns == length
            assert work.compute_ns == gemms + norms
            assert work.exposed_ns == {"tp": exposed, "cp": 0.0, "ep": 0.0}
            assert work.idle_ns == 0
            by_group = [work.group_frac[g] * work.compute_ns for g in GROUPS]
            assert by_group == pytest.approx([gemms, 0, norms])
            assert (work.kernels, work.fixed_ns) == (4, 8_000)
            # From the first launch to the last: six kernels, and six records and waits between them.
            assert work.host_ns == 12 * 4_003 + 11 * 1_500 + 2 * 1_200
            assert work.outside_layers_frac is None


def test_the_step_around_the_passes(stages: list[RankWork]) -> None:
    first, last = stages
    assert (first.rank, first.world_size, first.group, first.steps, first.passes) == (0, 8, (0, 4), 3, 4)
    # 1F1B on two stages: five times a forward, a backward and the message between them.
    assert first.window_ns == 5 * (FORWARD + BACKWARD + MESSAGE)
    assert last.window_ns == 4 * (FORWARD + BACKWARD) + 3 * MESSAGE
    copy = 41_003
    assert first.before_ns == copy
    assert last.before_ns == copy + FORWARD + MESSAGE
    assert first.step_ns == first.before_ns + first.window_ns + first.after_ns
    assert first.first_extra_ns == 0
    assert first.reduced_after_ns == 410_009
    assert last.reduced_after_ns == 410_009 + MESSAGE  # which takes the last gradient away


def test_traffic(stages: list[RankWork]) -> None:
    found = {
        (t.dimension, t.collective, t.bytes >> 20): (t.per_step, t.in_passes_frac, t.fast_ns, t.mean_ns)
        for t in stages[0].traffic
    }
    assert found["tp", "all_gather", 6] == (4, 1, 210_011, 210_011)
    assert found["tp", "all_reduce", 6] == (4, 1, 420_022, 420_022)
    assert found["tp", "reduce_scatter", 6] == (8, 1, 120_001, 180_001.5)
    assert found["dp", "reduce_scatter", 48] == (1, 0, 410_009, 410_009)
    assert found["dp", "all_gather", 24] == (1, 0, 300_007, 300_007)
    assert found["pp", "send_recv", 8][:3] == (3, 1, MESSAGE)
    assert stages[0].messages.quickest_ns == MESSAGE


def test_layers_gathered_weights_and_an_odd_step(tmp_path: Path) -> None:
    """Steps of two micro-batches; the forward of one layer takes 60 us of 100, of the first micro-batch 140
    of 180. The last step evaluates: it has a forward more, and does not count."""
    builder = TimelineBuilder()
    process = builder.process(pid=41_000, rank=0)
    thread, device = process.thread(), process.device(0)
    for step, micro_batches in enumerate((2, 2, 2, 3)):
        begin = 10_000_000 * (1 + step)
        thread.range(f"perfdoc.step {step}", begin, begin + 9_000_000)
        host, now = begin + 1_000, begin + 100_000
        for i in range(micro_batches):
            for name, of_layer, rest in (
                ("perfdoc.forward", 140_000 if i == 0 else 60_000, 40_000),
                ("perfdoc.backward", 150_000, 50_000),
            ):
                if name == "perfdoc.backward" and i == 2:
                    continue
                thread.range(name, host, host + 4_000)
                thread.range(f"{name} layer=5", host + 500, host + 2_000)
                for at, took in ((1_000, of_layer), (3_000, rest)):
                    launch = (thread, host + at, host + at + 500)
                    device.kernel(GEMM, now, now + took, launch=launch)
                    now += took
                host += 5_000
    work = rank_work(view_of(builder, tmp_path))
    assert work is not None
    assert (work.steps, work.passes, work.layers) == (3, 2, (5,))
    assert (work.forward.length_ns, work.backward.length_ns) == (100_000, 200_000)
    assert work.first_extra_ns == 80_000
    assert work.window_ns == 180_000 + 100_000 + 2 * 200_000
    # Shares over all passes of a direction: 40 of 180 and of 100.
    assert work.forward.outside_layers_frac == pytest.approx(80 / 280)
    assert work.backward.outside_layers_frac == pytest.approx(0.25)
    assert work.forward.host_ns == 500 + 1_500 + 500
    assert work.traffic == ()
    assert work.messages.quickest_ns is None


def test_traffic_is_by_collective_and_size_and_not_by_kernel(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(pid=41_000, rank=0)
    thread, device = process.thread(), process.device(0)
    names = ("AllReduce_Sum_bf16_RING_LL", "AllReduce_Sum_bf16_TREE_LL128", "AllReduce_Sum_f32_RING_LL")
    for step in range(2):
        begin = 1_000_000 * (1 + step)
        thread.range(f"perfdoc.step {step}", begin, begin + 900_000)
        for i, way in enumerate(("forward", "backward")):
            at = begin + 10_000 * (1 + i)
            thread.range(f"perfdoc.{way}", at, at + 5_000)
            device.kernel(GEMM, at + 1_000, at + 9_000, launch=(thread, at + 100, at + 200))
        for i, name in enumerate(names):
            at = begin + 100_000 * (1 + i)
            launch = (thread, at - 500, at - 400)
            device.kernel(f"ncclDevKernel_{name}", at, at + 10_000 * (1 + i), stream=20, launch=launch)
    work = rank_work(view_of(builder, tmp_path))
    assert work is not None
    (found,) = work.traffic
    assert (found.collective, found.per_step, found.mean_ns) == ("all_reduce", 3, 20_000)
    assert found.fast_ns == 10_000


def test_without_ranges_of_passes_there_is_nothing(tmp_path: Path) -> None:
    spec = JobSpec(dp=2, micro_batches=1, micro_batch_ranges=False)
    (path,) = planted_steps(spec, (0,)).write(tmp_path)
    (view,) = views_of(read_trace(path))
    assert rank_work(view) is None


def test_stages_by_group_and_by_number() -> None:
    assert rank_by_hand(rank=6, group=(2, 6), world=8).stage(2) == 1
    assert rank_by_hand(rank=6, group=(), world=8).stage(4) == 3
    assert rank_by_hand(rank=6, group=(), world=7).stage(4) is None
    assert rank_by_hand(rank=None, group=(), world=8).stage(4) is None
    assert rank_by_hand(rank=9, group=(), world=8).stage(4) is None
    assert rank_by_hand(rank=None, group=(), world=None).stage(1) == 0


def test_launch_bound_and_idle() -> None:
    """10 busy and 5 idle, of which the host's 13 explain 3: 15 again; of half the work the host's 13 stay."""
    rank = rank_by_hand(forward=10, idle=5, host=13)
    work = Work.of(rank.forward, 1, on_host=False)
    assert (work.busy, work.host, work.idle, work.length) == (10, 13, 2, 15)
    assert work.scaled({"gemm": 0.5}).length == 13 + 2
    assert work.scaled({"gemm": 2.0}).length == 20 + 2
    assert (work * 2).length == 30
    # A CPU rank's host is its device: nothing runs ahead of it.
    assert Work.of(rank.forward, 1, on_host=True).host == 0
