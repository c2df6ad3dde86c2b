"""Devices that others have too: what planted steps say whose truth is what the lines plant."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.screen import render_screen
from tests.captures.device import DeviceBuilder
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.process import ThreadBuilder
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1_000
KERNELS = {
    "nvjet_tst_256x128": 600,
    "vectorized_elementwise_kernel": 100,
    "vectorized_layer_norm_kernel": 100,
}
STEPS, LAYERS = 10, 12


QKV, FC1, FC2 = (f"nvjet_tst_{of}" for of in ("128x128", "256x128", "256x192"))


def steps(thread: ThreadBuilder, device: DeviceBuilder, longer_us: dict[tuple[int, int, str], int]) -> None:
    """Ten steps of twelve layers of 800 us. longer_us: by step, layer and kernel."""
    at = 1_000 * US
    for step in range(STEPS):
        begin, busy = at, at + 10 * US
        for layer in range(LAYERS):
            for name, us in KERNELS.items():
                end = busy + (us + longer_us.get((step, layer, name), 0)) * US
                device.kernel(name, busy, end, launch=(thread, at, at + 3 * US))
                at, busy = at + 5 * US, end
        thread.synchronize("device", at, busy)
        thread.range(f"step {step}", begin, busy)
        at = busy


def first_screen(builder: TimelineBuilder, folder: Path) -> str:
    path = write_nsys_sqlite(builder.build(), folder / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    return " ".join(render_screen(said, report="x").split())


def by_chance(names: list[str], often: float, seed: int) -> dict[tuple[int, int, str], int]:
    """2 ms longer at places drawn by chance."""
    chance = random.Random(seed)
    places = [(step, layer, name) for step in range(STEPS) for layer in range(LAYERS) for name in names]
    return dict.fromkeys((place for place in places if chance.random() < often), 2_000)


@pytest.mark.parametrize(
    ("names", "said"),
    [(list(KERNELS), "the GPU is shared, or pauses"), (["nvjet_tst_256x128"], "or their work differs")],
)
def test_runs_that_take_a_time_slice_longer_by_chance(names: list[str], said: str, tmp_path: Path) -> None:
    longer = by_chance(names, 0.1, seed=2)
    builder, thread, device = one_gpu()
    steps(thread, device, longer)
    screen = first_screen(builder, tmp_path)
    # Ten steps of 9.6 ms, and 2 ms for each of these.
    lost_ms, whole_ms = 2 * len(longer) / STEPS, 9.6 + 2 * len(longer) / STEPS
    assert screen.startswith(f"{lost_ms:.3g} ms of the {whole_ms:.3g} ms step")
    assert "some kernels take 2 ms longer than at the same place of other steps" in screen
    assert all(words in screen for words in (said, f"{len(longer)} of", "nvidia-smi pmon"))


@pytest.mark.parametrize(
    "longer",
    [
        # Each fourth step at the same places; one step altogether; layers in a row; none.
        {(step, layer, "nvjet_tst_256x128"): 2_000 for step in (0, 4, 8) for layer in (0, 1, 2)},
        {(3, layer, name): 2_000 for layer in range(LAYERS) for name in KERNELS},
        {(s, (5 * s + i) % LAYERS, n): 4 * KERNELS[n] for s in range(10) for i in (0, 1, 2) for n in KERNELS},
        {},
    ],
)  # fmt: skip
def test_other_work_is_no_shared_gpu(longer: dict[tuple[int, int, str], int], tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    steps(thread, device, longer)
    screen = first_screen(builder, tmp_path)
    assert not any(words in screen for words in ("same place", "shared"))


def micro_batches(chance: random.Random) -> list[tuple[str, float]]:
    """Eight, one in five with sequences half longer; GEMMs whose grid is all SMs whatever they multiply."""
    lengths = [1.5 if chance.random() < 0.2 else 1.0 for _ in range(8)]
    layer = [(QKV, 250.0), (FC1, 1_000.0), ("nvjet_tst_192x128", 250.0), (FC2, 1_000.0)]
    return [(name, us * longer) for longer in lengths for _ in range(6) for name, us in layer]


def experts(chance: random.Random) -> list[tuple[str, float]]:
    """Six layers of eight experts, of which one, drawn anew each time, gets three times the tokens."""
    made: list[tuple[str, float]] = []
    for _ in range(6):
        popular = chance.randrange(8)
        of_each = [720.0 if expert == popular else 240.0 for expert in range(8)]
        made += [(QKV, 900.0), *((FC1, us) for us in of_each), *((FC2, us) for us in of_each)]
    return made


@pytest.mark.parametrize("work", [micro_batches, experts])
def test_a_batch_that_varies_is_no_shared_gpu(
    work: Callable[[random.Random], list[tuple[str, float]]], tmp_path: Path
) -> None:
    """No other process is there: how long kernels take is drawn with what they compute."""
    chance = random.Random(1)
    builder, thread, device = one_gpu()
    at = 1_000 * US
    for step in range(12):
        begin, busy = at, at + 10 * US
        for name, us in work(chance):
            end = busy + int(us) * US
            device.kernel(name, busy, end, launch=(thread, at, at + 3 * US))
            at, busy = at + 5 * US, end
        thread.synchronize("device", at, busy)
        thread.range(f"step {step}", begin, busy)
        at = busy
    screen = first_screen(builder, tmp_path)
    assert not any(words in screen for words in ("same place", "shared"))


@pytest.mark.parametrize("uuid", ["GPU-1", "GPU-2"])
def test_two_processes_on_one_gpu_have_it_at_the_same_time(uuid: str, tmp_path: Path) -> None:
    """Both compute all the time: on one GPU, or on one each."""
    builder = TimelineBuilder()
    for pid, gpu in ((1000, "GPU-1"), (2000, uuid)):
        process = builder.process(pid=pid)
        steps(process.thread(), process.device(uuid=gpu), {})
    screen = first_screen(builder, tmp_path)
    assert ".." not in screen
    assert ("The GPU is shared: in 99" in screen or "The GPU is shared: in 100" in screen) == (
        uuid == "GPU-1"
    )
