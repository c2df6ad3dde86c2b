"""What a long window's first steps predict is what the whole of it gives, or they predict nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.diagnose import measuring
from perfdoc.results import Diagnosis, Prediction
from perfdoc.simulator.replay import first_steps as module
from perfdoc.simulator.replay import unedited
from perfdoc.simulator.replay.unedited import KeptRank, replay_and_keep
from perfdoc.summaries.codec import check
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.simulator.test_gains import analysed, prediction

US, MS = 1_000, 1_000_000
BF16 = JobFacts(dtype="bf16")


class Planted:
    """A rank whose host launches in 5 us what then takes its time in the order of its stream."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        process = self.builder.process(pid=1_000, rank=0)
        self.thread, self.device = process.thread(), process.device()
        self.host_ns, self.free_ns = 2 * MS, dict.fromkeys((7, 20), 0)
        self.kernel(50 * US)
        self.wait()

    def _starts(self, stream: int) -> tuple[int, tuple[object, int, int]]:
        launch = (self.thread, self.host_ns, self.host_ns + 4 * US)
        self.host_ns += 5 * US
        return max(launch[2] + 2 * US, self.free_ns[stream]), launch

    def kernel(self, took_ns: int, stream: int = 7) -> None:
        begin, launch = self._starts(stream)
        self.free_ns[stream] = begin + took_ns
        self.device.kernel(GEMM, begin, begin + took_ns, stream=stream, launch=launch)  # type: ignore[arg-type]

    def copy(self, took_ns: int, stream: int) -> None:
        begin, launch = self._starts(stream)
        self.free_ns[stream] = begin + took_ns
        end = begin + took_ns
        self.device.copy("host_to_device", 1 << 20, begin, end, stream=stream, launch=launch)  # type: ignore[arg-type]

    def after(self, first: int, then: int) -> None:
        """The second stream waits for the first."""
        call = lambda: (self.thread, self.host_ns, self.host_ns + US)  # noqa: E731
        event = self.device.record_event(first, launch=call(), done_ns=self.free_ns[first])
        self.host_ns += 2 * US
        self.device.wait_event(then, event, launch=call())
        self.host_ns += 2 * US
        self.free_ns[then] = max(self.free_ns[then], self.free_ns[first] + US)

    def wait(self) -> None:
        end = max(self.free_ns[7], self.host_ns) + 3 * US
        self.thread.synchronize("stream", self.host_ns, end, stream=7)
        self.host_ns = end + US

    def hold(self, took_ns: int, name: str = "") -> None:
        if name:
            self.thread.range(name, self.host_ns, self.host_ns + took_ns)
        self.host_ns += took_ns

    def written(self, folder: Path, steps: int, step: Callable[[Planted, int], None]) -> Path:
        for number in range(steps):
            begin = self.host_ns
            step(self, number)
            self.thread.range(f"perfdoc.step {number}", begin, self.host_ns)
            self.host_ns += US
        return write_nsys_sqlite(self.builder.build(), folder / "rank0.sqlite", generation="2026.3")


def limited(path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, part: int) -> None:
    """So that a window of these steps is too long, and its first ones are replayed."""
    whole = replay_and_keep(views_of(read_trace(path), BF16)[0])
    assert whole is not None
    for place in (unedited, measuring):
        monkeypatch.setattr(place, "KEPT_TASKS_MAX", whole.replay.tasks * 3 // 4)
    monkeypatch.setattr(module, "REPLAYED_TASKS", int((part + 0.5) * whole.replay.tasks / steps))
    monkeypatch.setattr(module, "FEWEST_STEPS", part)


def of_whole_and_part(
    path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, part: int, key: str
) -> tuple[Prediction, Prediction, Diagnosis]:
    whole = prediction(analysed([path], BF16), key)
    limited(path, monkeypatch, steps, part)
    found = analysed([path], BF16)
    (rank,) = found.ranks
    assert rank.replay is not None
    assert part <= rank.replay.steps < 2 * part or part == rank.replay.steps
    assert rank.replay.window_steps == steps
    return whole, prediction(found, key), found


def gemms(count: int, pause_ns: int = 0, took_ns: int = 100 * US) -> Callable[[Planted], None]:
    def launch(rank: Planted) -> None:
        for _ in range(count):
            rank.kernel(took_ns)
            rank.hold(pause_ns)

    return launch


def beside_the_next_step(rank: Planted, number: int) -> None:
    """2 ms of GEMMs, and 1.5 ms on another stream that the next step does not wait for."""
    gemms(20)(rank)
    rank.after(7, 20)
    rank.kernel(1_500 * US, stream=20)
    rank.wait()


def waits_at_its_start(rank: Planted, number: int) -> None:
    """The host waits once a step, for the step before, and prepares 0.5 ms after it."""
    rank.hold(100 * US)
    rank.wait()
    rank.hold(500 * US)
    gemms(20)(rank)


def waits_twice(rank: Planted, number: int) -> None:
    for _ in range(2):
        gemms(10)(rank)
        rank.wait()
        rank.hold(300 * US)


def python_between_steps(rank: Planted, number: int) -> None:
    """A host that launches more slowly than its device computes, and does 4 ms of Python before each step."""
    rank.hold(4 * MS)
    gemms(20, 140 * US)(rank)


def ahead_of_its_device(rank: Planted, number: int) -> None:
    """The host takes 1.3 ms a step, the device 2 ms; a copy that only its launch holds begins no step."""
    rank.copy(50 * US, 20)
    gemms(20, 60 * US)(rank)
    rank.after(20, 7)


@pytest.mark.parametrize("part", [1, 4])
@pytest.mark.parametrize(
    ("step", "key", "method"),
    [
        (ahead_of_its_device, "fp8_gemm", "replay"),
        (beside_the_next_step, "fp8_gemm", "replay"),
        (waits_at_its_start, "without_waits", "none"),
        (waits_twice, "without_waits", "replay"),
        (python_between_steps, "without_launches", "replay"),
    ],
)
def test_a_part_gains_what_the_window_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[Planted, int], None],
    key: str,
    method: str,
    part: int,
) -> None:
    """What overhangs the part's end counts until then; calls of the next step are none of the last one's."""
    path = Planted().written(tmp_path, 40, step)
    whole, found, _ = of_whole_and_part(path, monkeypatch, 40, part, key)
    assert found.gain.method == whole.gain.method == method
    if method == "replay":
        assert whole.mid_ns
        assert found.mid_ns == pytest.approx(whole.mid_ns, rel=0.04)


def one_stall_at_the_start(rank: Planted, number: int) -> None:
    if number == 1:
        rank.hold(20 * MS, "perfdoc.data")
    gemms(20)(rank)
    rank.wait()


def quicker_at_the_start(rank: Planted, number: int) -> None:
    gemms(20, took_ns=100 * US if number < 4 else 200 * US)(rank)
    rank.wait()


def slower_at_the_start(rank: Planted, number: int) -> None:
    gemms(20, took_ns=200 * US if number < 4 else 100 * US)(rank)
    rank.wait()


@pytest.mark.parametrize(
    ("step", "key", "words"),
    [
        (quicker_at_the_start, "fp8_gemm", "shorter"),
        (one_stall_at_the_start, "without_data", "longer"),
        (slower_at_the_start, "fp8_gemm", "longer"),
    ],
)
def test_steps_that_are_not_like_the_window_s_predict_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[Planted, int], None],
    key: str,
    words: str,
) -> None:
    """The bound and the step that it is a share of are those of the whole window."""
    path = Planted().written(tmp_path, 40, step)
    whole, found, _ = of_whole_and_part(path, monkeypatch, 40, 4, key)
    assert whole.gain.method == "replay"
    assert found.gain.method == "ceiling"
    assert any(words in said for said in found.gain.assumptions)
    assert found.high_ns is not None
    assert whole.mid_ns is not None
    assert found.high_ns >= whole.mid_ns
    assert found.step_ns == pytest.approx(whole.step_ns, rel=0.01)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptRank:
    path = Planted().written(tmp_path_factory.mktemp("kept"), 4, waits_twice)
    found = replay_and_keep(views_of(read_trace(path), BF16)[0])
    assert found is not None
    check(found)
    return found


def test_replays_of_a_file_that_cannot_be_are_refused(kept: KeptRank) -> None:
    rebuilt = kept.rebuilt
    assert rebuilt is not None
    (frame,) = rebuilt.ranks
    late = np.full(len(rebuilt.start_ns), 1 << 60)
    forged = [
        replace(kept, replay=replace(kept.replay, steps=-1)),
        *(
            replace(kept, rebuilt=other)
            for other in (
                replace(rebuilt, ranks=(replace(frame, host={}),)),
                replace(rebuilt, start_ns=late, end_ns=late),
                replace(rebuilt, end_ns=rebuilt.start_ns - 1),
                replace(rebuilt, graph=replace(rebuilt.graph, duration_ns=late)),
            )
        ),
    ]
    for value in forged:
        with pytest.raises(ValueError, match=r"replay|bounds"):
            check(value)
