"""PD211: one process that spreads its batch over several GPUs, as torch.nn.DataParallel does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import STEP_US, US, case_of, result

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def spread(
    *, sent: tuple[str, str] = (BROADCAST, REDUCE), gpus: int = 2, named: bool = True
) -> TimelineBuilder:
    """Four steps of 1 ms on GPUs of one process: 100 us from it, each computes 300 us, 100 us to GPU 0, which
    computes for 300 us more; at the end it updates its weights for 200 us."""
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    devices = [process.device(ordinal=i) for i in range(gpus)]
    for step in range(4):
        at = step * STEP_US * US
        thread.range(f"perfdoc.step {step}", at, at + STEP_US * US)
        if named:
            thread.range("DataParallel.forward", at + 1, at + 300 * US)
        for device in devices:
            launch = thread, at + 2 * US, at + 3 * US
            device.kernel(sent[0], at, at + 100 * US, stream=20, launch=launch)
            device.kernel(GEMM, at + 100 * US, at + 400 * US, launch=launch)
            device.kernel(sent[1], at + 400 * US, at + 500 * US, stream=20, launch=launch)
        devices[0].kernel(GEMM, at + 500 * US, at + STEP_US * US, launch=(thread, at + 4 * US, at + 5 * US))
    return builder


def test_data_parallel_is_named_and_bounded(tmp_path: Path) -> None:
    """GPU 0 computes 800 us and GPU 1 300: each as much in a process of its own is 550 of the 1,000."""
    found = result("PD211", case_of(tmp_path, spread()))
    assert found.state == "fires"
    assert found.gain is not None
    assert found.gain.high_ms == pytest.approx(0.45, rel=0.01)
    assert "DataParallel" in found.blames
    assert "nproc-per-node 2" in found.remedy


def test_what_is_sent_shows_it_too(tmp_path: Path) -> None:
    assert result("PD211", case_of(tmp_path / "sent", spread(named=False))).state == "fires"
    reducing = spread(sent=(ALL_REDUCE, ALL_REDUCE), named=False)
    assert result("PD211", case_of(tmp_path / "all", reducing)).state == "not_applicable"
    assert result("PD211", case_of(tmp_path / "one", spread(gpus=1))).state == "not_applicable"


LAYERS = ((BROADCAST, 0, 50), (GEMM, 50, 350), (REDUCE, 350, 400), (BROADCAST, 400, 450), (GEMM, 450, 750),
          (REDUCE, 750, 800))  # fmt: skip
"""(kernel, from, to) of a step, us: what GPUs that share each layer send."""
SHARDED = ((GEMM, 0, 500), (REDUCE, 500, 600), (BROADCAST, 800, 900))
"""What ranks whose optimizers are sharded send."""
GATHERED = ((BROADCAST, 0, 100), (GEMM, 100, 600), (REDUCE, 600, 700))


@pytest.mark.parametrize(
    ("does", "first_us", "fires"),
    [(LAYERS, 150, False), (SHARDED, 150, False), (GATHERED, 0, False), (GATHERED, 74, False)]
    + [(GATHERED, 76, True)],
)
def test_broadcasts_and_reduces_alone_are_no_data_parallel(
    does: tuple[tuple[str, int, int], ...], first_us: int, fires: bool, tmp_path: Path
) -> None:
    """GPU 0 computes longer after all else: of 500 us 15 % are 75. Weights that are sent first and gradients
    that come back last, to a GPU that does more, are likely DataParallel's; nothing says so."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, devices = process.thread(), [process.device(ordinal=i) for i in range(2)]
    for step in range(4):
        at = step * STEP_US * US
        thread.range(f"perfdoc.step {step}", at, at + STEP_US * US)
        launch = thread, at + 1, at + 2
        for device in devices:
            for name, start, end in does:
                stream = 7 if name == GEMM else 20
                device.kernel(name, at + start * US, at + end * US, stream=stream, launch=launch)
        if first_us:
            devices[0].kernel(GEMM, at + 801 * US, at + (801 + first_us) * US, launch=launch)
    found = result("PD211", case_of(tmp_path, builder))
    assert found.state == ("fires" if fires else "not_applicable")
    assert not fires or "likely" in found.blames
