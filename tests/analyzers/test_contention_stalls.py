"""Norms that resident communication keeps from starting, and the same picture from other causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.results import DeviceContention
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_schemas import ExportOptions
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

NORM = "rmsnorm_fwd_tuned_kernel"


class Plan:
    """An all-reduce of 24 blocks [10, 110) us on stream 20, a gemm [0, 30) us beside it on stream 7, and a
    norm behind the gemm: launched at 5 us, it could start at 30 and starts at 111."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        self.process = self.builder.process()
        self.thread = self.process.thread()
        self.device = self.process.device()
        self.device.kernel(GEMM, 0, 30_000, launch=(self.thread, 0, 10))
        self.device.kernel(
            ALL_REDUCE, 10_000, 110_000, stream=20, grid=(24, 1, 1), launch=(self.thread, 1_000, 1_010)
        )

    def norm(self, start: int = 111_000, launched: int = 5_000, name: str = NORM) -> None:
        self.device.kernel(name, start, start + 10_000, launch=(self.thread, launched, launched + 10))

    def measure(self, folder: Path) -> DeviceContention:
        return norm_contention(view_of(self.builder, folder))[0]


def test_a_norm_that_starts_as_communication_ends(tmp_path: Path) -> None:
    plan = Plan()
    plan.norm()
    found = plan.measure(tmp_path)
    # Ready when the gemm ends at 30,000; starts at 111,000.
    assert (found.stalled_starts, found.stalled_ns, found.undecided_starts) == (1, 81_000, 0)
    assert (found.other_stalled_starts, found.stalled_reason) == (0, "")
    # It never ran beside communication; the blocks are those that it waited for.
    assert found.signatures == []
    assert (found.occupied_blocks, found.suggested_sm_margin) == (24, 24)


def test_a_held_up_norm_without_a_margin_suggests_none(tmp_path: Path) -> None:
    plan = Plan()
    plan.norm(name="void at::native::vectorized_layer_norm_kernel<float>(x)")
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.occupied_blocks, found.suggested_sm_margin) == (1, 24, None)
    assert found.margin_reason.startswith("only Transformer Engine's norms")


def test_readiness_is_the_launch_where_that_is_later(tmp_path: Path) -> None:
    plan = Plan()
    plan.norm(launched=60_000)
    assert plan.measure(tmp_path).stalled_ns == 111_000 - 60_010


def test_other_kernels_that_look_the_same_are_a_control(tmp_path: Path) -> None:
    plan = Plan()
    plan.norm(name="my_elementwise_kernel")
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.stalled_ns, found.other_stalled_starts) == (0, 0, 1)


def test_back_to_back_communication_is_one_wait(tmp_path: Path) -> None:
    plan = Plan()
    plan.device.kernel(ALL_REDUCE, 112_000, 200_000, stream=20, launch=(plan.thread, 2_000, 2_010))
    plan.norm(start=199_500)
    # 30,000 to 199,500, of which 2,000 without communication: under a tenth.
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.stalled_ns) == (1, 169_500)


@pytest.mark.parametrize(
    ("start", "launched"),
    [
        (111_000, 105_000),  # queued for less than 10 us
        (120_000, 5_000),  # not as communication ends
        (100_000, 5_000),  # before it does
        (32_000, 5_000),  # at once
        (111_000, 110_500),  # launched after the end
    ],
)
def test_what_is_no_stall(tmp_path: Path, start: int, launched: int) -> None:
    plan = Plan()
    plan.norm(start=start, launched=launched)
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.undecided_starts, found.stalled_ns) == (0, 0, 0)


def test_other_compute_may_have_been_the_cause(tmp_path: Path) -> None:
    plan = Plan()
    plan.device.kernel(GEMM, 40_000, 60_000, stream=13, launch=(plan.thread, 4_000, 4_010))
    plan.norm()
    # 20,000 of the 81,000 ns.
    assert plan.measure(tmp_path).stalled_starts == 0


def test_a_wait_of_its_stream_leaves_it_undecided(tmp_path: Path) -> None:
    plan = Plan()
    record = plan.device.record_event(20, launch=(plan.thread, 2_000, 2_005))
    plan.device.wait_event(7, record, launch=(plan.thread, 3_000, 3_005))
    plan.norm()
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.undecided_starts) == (0, 1)


def test_without_event_rows_a_wait_call_leaves_it_undecided(tmp_path: Path) -> None:
    for waits, expected in ((False, (1, 0)), (True, (0, 1))):
        plan = Plan()
        if waits:
            record = plan.device.record_event(20, launch=(plan.thread, 2_000, 2_005))
            plan.device.wait_event(7, record, launch=(plan.thread, 3_000, 3_005))
        plan.norm()
        path = tmp_path / f"{waits}.sqlite"
        write_nsys_sqlite(plan.builder.build(), path, options=ExportOptions(event_records=False))
        (view,) = views_of(read_nsys_sqlite(path))
        found = norm_contention(view)[0]
        assert (found.stalled_starts, found.undecided_starts) == expected


@pytest.mark.parametrize("call", ["cudaLaunchHostFunc", "cuStreamWaitValue64_v2", "cuStreamBatchMemOp"])
def test_host_functions_and_waits_for_memory_leave_it_undecided(tmp_path: Path, call: str) -> None:
    plan = Plan()
    plan.thread.api(call, 3_000, 3_010)
    plan.norm()
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.undecided_starts) == (0, 1)


def test_a_stream_that_never_runs_beside_communication_may_be_ordered_after_it(tmp_path: Path) -> None:
    # As the legacy default stream is; here the gemm is over when the all-reduce starts.
    plan = Plan()
    plan.builder = TimelineBuilder()
    process = plan.builder.process()
    thread, device = process.thread(), process.device()
    device.kernel(GEMM, 0, 9_000, launch=(thread, 0, 10))
    device.kernel(ALL_REDUCE, 10_000, 110_000, stream=20, launch=(thread, 1_000, 1_010))
    device.kernel(NORM, 111_000, 120_000, launch=(thread, 5_000, 5_010))
    found = plan.measure(tmp_path)
    assert (found.stalled_starts, found.undecided_starts) == (0, 1)


def test_without_launches_it_is_not_measured(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel(GEMM, 0, 30_000)
    device.kernel(ALL_REDUCE, 10_000, 110_000, stream=20)
    device.kernel(NORM, 111_000, 120_000)
    found = norm_contention(view_of(builder, tmp_path))[0]
    assert (found.state, found.stalled_starts, found.stalled_ns) == ("measured", None, None)
    assert "launched" in found.stalled_reason
