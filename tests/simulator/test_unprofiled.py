"""A window with shorter collections: what is left of them is what can still be taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.whole import FreeLengths, as_unprofiled
from tests.simulator.rebuilt_of import length
from tests.simulator.simulated import replayed, simulated
from tests.simulator.test_replay_cpu import step as cpu_step


@pytest.fixture(scope="module")
def collecting(tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """The host starves the device and collects for 2 ms in the same gaps between calls."""
    job = simulated("dp=2", "gc=2", "launch_starved=3000", steps=2)
    return replayed(job, tmp_path_factory.mktemp("gc"))[1]


@pytest.mark.parametrize("keep_frac", [0.0, 0.25, 0.5, 1.0])
def test_what_is_left_is_taken_once(collecting: Rebuilt, keep_frac: float) -> None:
    """Whatever share of them lasts without the profiler: without collections the step is as long."""
    gc = without_host_time("gc")
    free, _ = as_unprofiled(collecting, FreeLengths(gc_frac=keep_frac))
    without = length(gc.apply(collecting))
    assert length(collecting) - without > 2_000_000
    assert length(free) - without == pytest.approx(keep_frac * (length(collecting) - without), abs=10_000)
    if keep_frac:
        assert length(gc.apply(free)) == pytest.approx(without, abs=10)


def test_taking_a_share_twice_is_taking_both(collecting: Rebuilt) -> None:
    half = without_host_time("gc", keep_frac=0.5)
    quarter = length(without_host_time("gc", keep_frac=0.25).apply(collecting))
    assert length(half.apply(half.apply(collecting))) == pytest.approx(quarter, abs=10)
    gone = without_host_time("gc").apply(collecting)
    with pytest.raises(ValueError, match="no range of the capture shows gc"):
        without_host_time("gc").apply(gone)


@pytest.mark.parametrize(("step_frac", "length_ns", "said"), [(0.9, 913_000, "86 %"), (0.2, 692_500, "50 %")])
def test_computation_on_a_cpu_is_as_long_as_without_the_profiler(
    step_frac: float, length_ns: int, said: str, tmp_path: Path
) -> None:
    """Of the 1000 us of test_replay_cpu data and collection are 130. A tenth of the other 870 is 87 less, all
    of it of the 615 that the host computes and launches; the transfer's 255 stay. Less than half of those 615
    is not believed."""
    free, changed = as_unprofiled(cpu_step(tmp_path), FreeLengths(step_frac=step_frac))
    assert length(free) == pytest.approx(length_ns, abs=10)
    assert f"takes {said} of its time under the profiler" in changed[0]


def test_computation_on_a_gpu_is_as_long_under_the_profiler(collecting: Rebuilt) -> None:
    assert as_unprofiled(collecting, FreeLengths(step_frac=0.5)) == (collecting, [])
