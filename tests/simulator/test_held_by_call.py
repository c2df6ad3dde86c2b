"""What a call holds up that still runs as the device falls idle, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.replay.edits.host import without_launches
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu
from tests.simulator.rebuilt_of import length

US = 1_000


def rebuilt_of(folder: Path, *launches: tuple[int, int, int, int]) -> Rebuilt:
    """(call begins, returns, kernel begins, ends) in us, of one thread and one stream."""
    builder, thread, device = one_gpu()
    for call, returned, begin, end in launches:
        device.kernel(GEMM, begin * US, end * US, launch=(thread, call * US, returned * US))
    folder.mkdir(exist_ok=True)
    return rebuild_rank(view_of(builder, folder))


def together(rebuilt: Rebuilt) -> float:
    return length(without_launches().apply(rebuilt)) / US


@pytest.mark.parametrize("apart", [6, 7, 8, 9])
def test_a_call_that_still_runs_holds_up_its_kernel(apart: int, tmp_path: Path) -> None:
    """Ten calls of 4 us, each kernel 5 us after its call began and for 3. Together all are there as the first
    runs, and the other nine follow 1.2 us behind one another: 30 + 9 x 1.2."""
    calls = [(at, at + 4, at + 5, at + 8) for at in range(0, 10 * apart, apart)]
    rebuilt = rebuilt_of(tmp_path, *calls)
    assert length(rebuilt) == (9 * apart + 3) * US
    assert together(rebuilt) == pytest.approx(40.8)


def test_what_is_queued_begins_where_it_did(tmp_path: Path) -> None:
    """Ten kernels of 20 us, each 1 us behind the one before, and calls 5 us apart: nothing can go. A call
    that a full queue holds for 90 us is no reason for its kernel either, nor one that returns long after its
    kernel began where that began as soon as queued ones do; where it began 4 us behind, it was late by 3."""
    queued = [(5 * i, 5 * i + 4, 5 + 21 * i, 25 + 21 * i) for i in range(10)]
    assert together(rebuilt_of(tmp_path / "queued", *queued)) == 209
    full = [*queued[:9], (45, 135, 194, 214)]
    assert together(rebuilt_of(tmp_path / "full", *full)) == 209
    beside = [*queued, (210, 240, 215, 225)]
    assert together(rebuilt_of(tmp_path / "beside", *beside)) == 220
    late = [*queued, (210, 240, 218, 228)]
    assert together(rebuilt_of(tmp_path / "late", *late)) == 220


def test_a_call_may_have_returned_and_its_kernel_be_on_its_way(tmp_path: Path) -> None:
    """Kernels begin 8 us after calls of 2, on a device that is idle when they are made. One more call
    returns 2 us before the device is free, and its kernel begins 4 us behind, 8 after the call: so long a
    launch takes. Together all follow one another in 1.2 us."""
    calls = [(0, 2, 8, 11), (10, 12, 18, 24), (20, 22, 28, 32), (28, 30, 36, 39)]
    assert together(rebuilt_of(tmp_path, *calls)) == pytest.approx(3 + 6 + 4 + 3 + 3 * 1.2)


def test_a_graph_and_a_blocking_copy_hold_up_nothing_by_their_length(tmp_path: Path) -> None:
    """The second kernel of one call, 3 us behind the first, waits for that, though the call runs; a copy from
    pageable memory, within its call, for what ran before it. Of two more launches the second call runs as the
    first one's kernel ends at 60: its kernel follows in 1.2 us and not in 5."""
    builder, thread, device = one_gpu()
    graph = thread.api("cudaGraphLaunch", 0, 30 * US)
    device.kernel(GEMM, 5 * US, 10 * US, correlation=graph)
    device.kernel(GEMM, 13 * US, 20 * US, correlation=graph)
    device.copy("host_to_device", 64, 36 * US, 40 * US, launch=(thread, 31 * US, 41 * US, "cudaMemcpyAsync"))
    device.kernel(GEMM, 45 * US, 60 * US, launch=(thread, 42 * US, 44 * US))
    device.kernel(GEMM, 65 * US, 70 * US, launch=(thread, 58 * US, 64 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert length(rebuilt) == 65 * US
    assert together(rebuilt) == pytest.approx(61.2)
