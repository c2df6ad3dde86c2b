"""A host that waits for its next batch where no range names a step: told by the copy that ends the wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import case_of, gain_of, predicting, result

MS = 1_000_000
STEPS = 6


def fed(*, copied: bool, scheduled: bool) -> TimelineBuilder:
    """Six times 60 ms of kernels, whose end the host waits for, then 38 ms without a CUDA call, 37 of them
    off the CPU. copied: a batch of 1 MiB follows."""
    builder, thread, device = one_gpu()
    for i in range(STEPS):
        at = 100 * i * MS
        if copied:
            launch = (thread, at + 10, at + 20, "cudaMemcpyAsync_v3020")
            device.copy("host_to_device", 1 << 20, at + 30, at + 40, launch=launch)
        for k in range(30):
            begin = at + MS + 2 * k * MS
            device.kernel(GEMM, begin, begin + 2 * MS, launch=(thread, at + 50 + 10 * k, at + 58 + 10 * k))
        thread.synchronize("stream", at + MS, at + 61 * MS, stream=7)
        if scheduled:
            thread.off_cpu(at + 62 * MS, at + 99 * MS)
    return builder


@pytest.mark.parametrize(("copied", "likely"), [(1 << 10, True), (16 << 20, False)])
def test_what_comes_back_from_an_optimizer_on_the_host_is_no_batch(
    tmp_path: Path, copied: int, likely: bool
) -> None:
    """Three such pauses a step, two of them inside it: each behind a copy to the host: a loss, or
    16 MiB, of which as much comes back."""
    builder = fed(copied=True, scheduled=False)
    (process,) = builder._processes.values()
    thread, device = next(iter(process.threads.values())), process.devices[0]
    for i in range(STEPS):
        at = 100 * i * MS
        if i % 3 == 0:
            thread.range(f"step {i}", at, at + 299 * MS)
        launch = (thread, at + 500, at + 600, "cudaMemcpyAsync_v3020")
        device.copy("device_to_host", copied, at + 59 * MS, at + 60 * MS, stream=9, launch=launch)
        launch = (thread, at + 25, at + 30, "cudaMemcpyAsync_v3020")
        device.copy("host_to_device", copied, at + 40, at + 900, stream=9, launch=launch)
    found = result("PD201", case_of(tmp_path, builder))
    assert ("next batch" in found.reason) == likely
    assert ("offload" in found.remedy) != likely


def test_one_checkpoint_does_not_hide_a_wait_for_batches(tmp_path: Path) -> None:
    """Two steps of three pauses; 512 MiB go to the host in one of the six, and do not come back."""
    builder = fed(copied=True, scheduled=False)
    (process,) = builder._processes.values()
    thread = next(iter(process.threads.values()))
    for i in range(0, STEPS, 3):
        thread.range(f"step {i}", 100 * i * MS, 100 * i * MS + 299 * MS)
    launch = (thread, 300 * MS + 500, 300 * MS + 600, "cudaMemcpyAsync_v3020")
    process.devices[0].copy("device_to_host", 512 << 20, 320 * MS, 358 * MS, stream=9, launch=launch)
    assert "next batch" in result("PD201", case_of(tmp_path, builder)).reason


@pytest.mark.parametrize(
    ("copied", "scheduled", "likely"), [(True, True, True), (True, False, True), (False, True, False)]
)
def test_a_copy_behind_the_wait_tells_of_a_batch(
    tmp_path: Path, copied: bool, scheduled: bool, likely: bool
) -> None:
    case = case_of(tmp_path, fed(copied=copied, scheduled=scheduled))
    found = result("PD201", case)
    assert found.state == "fires"
    assert ("next batch" in found.reason) == likely
    # All that the host idles, in five gaps of 39 ms, is at most saved; and it is the waits' change too.
    assert gain_of(found).high_ms == pytest.approx(5 * 39, abs=10)
    assert gain_of(found).key == "without_waits"


def test_calls_that_wait_are_no_loss_where_the_host_waits_for_a_batch_behind_them(tmp_path: Path) -> None:
    """A replay without them promises the 39 ms behind each; a loader that is too slow takes as long."""
    case = predicting(
        case_of(tmp_path, fed(copied=True, scheduled=True)), without_waits=(150.0, 180.0, 200.0)
    )
    found = result("PD208", case)
    assert found.state == "passes"
    assert "something else" in found.reason


@pytest.mark.parametrize(
    ("name", "likely"), [("env.step", False), ("VecEnv.step", False), ("envelope", True)]
)
def test_a_simulator_that_is_stepped_gives_no_batches(tmp_path: Path, name: str, likely: bool) -> None:
    """Its observations are copied behind each 38 ms, as a batch would be."""
    builder = fed(copied=True, scheduled=False)
    (process,) = builder._processes.values()
    thread = next(iter(process.threads.values()))
    for i in range(STEPS):
        thread.range(name, (100 * i + 61) * MS, (100 * i + 99) * MS)
    found = result("PD201", case_of(tmp_path, builder))
    assert ("next batch" in found.reason) == likely
    assert (f"See what `{name}` does" in found.remedy) != likely
