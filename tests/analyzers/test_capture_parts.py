"""What runs once and is left out (start-up, cold steps), and the period of what follows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.period import MIN_KERNELS, repetition
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture, measure_trace
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results import Diagnosis
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

MS = 1_000_000
US = 1_000


class Job:
    """A process that starts up, then runs passes of 40 kernels, each 60 us long and launched every 100 us."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        self.process = self.builder.process()
        self.thread, self.device = self.process.thread(), self.process.device()

    def kernel(self, at: int, name: str = GEMM, *, threads: int = 128) -> None:
        launch = (self.thread, at, at + 3 * US)
        self.device.kernel(name, at + 5 * US, at + 65 * US, launch=launch, block=(threads, 1, 1))

    def passes(self, begin: int, count: int, *, kernels: int = 40) -> int:
        """Kernels of their own shapes, in the same order in every pass; where the last one ends."""
        for i in range(count * kernels):
            self.kernel(begin + 100 * i * US, threads=32 * (1 + i % kernels))
        return begin + 100 * count * kernels * US

    def starts_up(self, until: int, call: str = "cuLibraryLoadData") -> None:
        """From 0 on a kernel every 10 ms, and before each a call of 5 ms."""
        for at in range(0, until, 10 * MS):
            self.kernel(at)
            self.thread.api(call, at + 2 * MS, at + 7 * MS)

    def measured(self, folder: Path, request: WindowRequest | None = None) -> RankMeasurement:
        (found,), _ = measure_trace(trace_of(self.builder, folder), request or WindowRequest())
        return found

    def diagnosed(self, folder: Path) -> Diagnosis:
        path = write_nsys_sqlite(self.builder.build(), folder / "job.sqlite")
        return diagnose([measure_capture(path, WindowRequest(), also=replay_and_keep)])


@pytest.mark.parametrize(
    "call", ["cuLibraryLoadData", "cuModuleLoadDataEx", "cudaMalloc_v3020", "cuMemCreate"]
)
def test_start_up_is_left_out_where_most_work_follows(tmp_path: Path, call: str) -> None:
    job = Job()
    job.starts_up(200 * MS, call)
    job.passes(200 * MS, 5)
    found = job.measured(tmp_path)
    start_up = found.window.start_up
    assert start_up is not None
    # 20 calls of 5 ms; 95 % of them have passed with the 19th, which ends at 187 ms: 19 lie before that.
    assert (start_up.start_ns, start_up.end_ns, start_up.left_out) == (5 * US, 187 * MS, True)
    assert start_up.loading_ns + start_up.allocation_ns == 95 * MS
    assert start_up.compute_ns == 19 * 60 * US
    # One of the 201 kernels after that starts at 190.005 ms, before the last call; the passes at 200.005 ms.
    assert (found.window.start_ns, found.window.kind) == (200 * MS + 5 * US, "capture")
    assert found.withheld == ""


@pytest.mark.parametrize("what", ["", "up 2", "up 30", "down 30", "few", "small", "step"])
def test_weights_that_come_before_the_kernels_are_start_up(tmp_path: Path, what: str) -> None:
    """Four copies of 50 ms, then 40 kernels a pass. 20 passes are 800 kernels: a sample. A copy of 2 ms later
    is 1 % of all, one of 30 ms 13 %: batches, or offloaded weights that go back. 400 MiB are a batch, as is
    what a marked step copies."""
    job, left_out = Job(), what in ("", "up 2")
    for at in range(0, 200 * MS, 50 * MS):
        size = (100 if what == "small" else 1024) << 20
        job.device.copy("host_to_device", size, at, at + 50 * MS, launch=(job.thread, at, at + US))
    end = job.passes(200 * MS, 20 if what == "few" else 30)
    if what[-1:].isdigit():
        kind = "host_to_device" if what.startswith("up") else "device_to_host"
        job.device.copy(kind, 1 << 20, end, end + int(what.split()[1]) * MS)
    if what == "step":
        job.thread.range("step 0", 0, end)
    window = job.measured(tmp_path).window
    assert (window.start_up is not None) == left_out
    assert window.start_ns == (200 * MS + 5 * US if left_out else 0)
    if window.start_up:
        assert (window.start_up.end_ns, window.start_up.loading_ns) == (200 * MS, 200 * MS)


def test_a_capture_of_start_up_promises_nothing(tmp_path: Path) -> None:
    job = Job()
    job.starts_up(200 * MS)
    found = job.diagnosed(tmp_path)
    (rank,) = found.ranks
    assert rank.window.start_up is not None
    assert (rank.window.start_up.left_out, rank.window.start_ns) == (False, 5 * US)
    assert "start-up" in found.verdict
    assert found.analyses.gains.state == "not_measured"
    assert "start-up" in found.analyses.gains.reason
    assert [r.code for r in found.rules if r.gain is not None] == []
    pd201 = next(r for r in found.rules if r.code == "PD201")
    assert (pd201.state, "start-up" in pd201.reason) == ("skipped", True)


def test_communicators_are_start_up(tmp_path: Path) -> None:
    job = Job()
    job.kernel(0)
    job.thread.range("ncclCommInitRankConfig", 1 * MS, 101 * MS)
    job.passes(110 * MS, 4)
    start_up = job.measured(tmp_path).window.start_up
    assert start_up is not None
    assert (start_up.end_ns, start_up.communicator_ns) == (101 * MS, 100 * MS)


def test_one_late_buffer_does_not_stretch_start_up(tmp_path: Path) -> None:
    job = Job()
    job.starts_up(100 * MS)
    end = job.passes(100 * MS, 10)
    job.thread.api("cudaMalloc", end - 2 * MS, end - 2 * MS + 100 * US)
    start_up = job.measured(tmp_path).window.start_up
    assert start_up is not None
    assert start_up.end_ns == 97 * MS


def test_memory_that_comes_and_goes_is_no_start_up(tmp_path: Path) -> None:
    job = Job()
    for i in range(50):
        at = 10 * i * MS
        job.kernel(at)
        job.thread.api("cudaMalloc_v3020", at + 1 * MS, at + 3 * MS)
        job.thread.api("cudaFree_v3020", at + 4 * MS, at + 6 * MS)
    assert job.measured(tmp_path).window.start_up is None


@pytest.mark.parametrize("call", ["cudaMallocAsync", "cudaFree", "cudaEventCreate", "cudaHostUnregister"])
def test_other_calls_are_no_start_up(tmp_path: Path, call: str) -> None:
    job = Job()
    job.starts_up(200 * MS, call)
    job.passes(200 * MS, 5)
    assert job.measured(tmp_path).window.start_up is None


def test_the_bounds_that_the_user_gives_stay_as_they_are(tmp_path: Path) -> None:
    """Start-up inside of them is told, and nothing is promised where it is much of the window."""
    job = Job()
    job.starts_up(200 * MS)
    end = job.passes(200 * MS, 5)
    job.thread.range("all of it", 0, end)
    for request in (
        WindowRequest(whole_capture=True),
        WindowRequest(bounds_ns=(5 * US, end)),
        WindowRequest(range_pattern=re.compile("^all of it$")),
    ):
        found = job.measured(tmp_path, request)
        window = found.window
        assert window.start_up is not None
        assert (window.start_up.end_ns, window.start_up.left_out) == (187 * MS, False)
        assert window.start_ns <= 5 * US
        assert window.period is None
        assert "start-up" in found.withheld
    after = job.measured(tmp_path, WindowRequest(bounds_ns=(200 * MS, end)))
    assert (after.window.start_up, after.withheld) == (None, "")


def test_long_first_launches_load_code(tmp_path: Path) -> None:
    """As ROCm does it: 8 kernels whose first launch takes 20 ms, then passes of others."""
    job = Job()
    for i in range(8):
        at = 20 * i * MS
        launch = (job.thread, at, at + 19 * MS)
        job.device.kernel(f"kernel_{i}", at + 19 * MS, at + 20 * MS, launch=launch)
    job.passes(160 * MS, 20)
    start_up = job.measured(tmp_path).window.start_up
    assert start_up is not None
    # The first of them led to the first kernel, at 19 ms: 133 ms after that, of seven launches.
    assert (start_up.start_ns, start_up.end_ns) == (19 * MS, 159 * MS)
    assert (start_up.loading_ns, start_up.left_out) == (7 * 19 * MS, True)


def test_a_launch_that_waits_for_a_full_queue_loads_nothing(tmp_path: Path) -> None:
    job = Job()
    job.device.kernel("long one", 0, 200 * MS, launch=(job.thread, 0, 5 * US))
    for i in range(8):
        at = (1 + 20 * i) * MS
        launch = (job.thread, at, at + 19 * MS)
        job.device.kernel(f"kernel_{i}", (200 + i) * MS, (201 + i) * MS, launch=launch)
    assert job.measured(tmp_path).window.start_up is None


def paused(job: Job, pauses: int, each: int) -> None:
    """Passes of 4 ms with pauses between them."""
    at = 0
    for _ in range(pauses + 1):
        at = job.passes(at, 1) + each


def test_a_single_pause_promises_nothing(tmp_path: Path) -> None:
    job = Job()
    paused(job, 1, 100 * MS)
    found = job.diagnosed(tmp_path)
    (rank,) = found.ranks
    pause = rank.window.pause
    assert pause is not None
    # The last kernel of the first pass ends 35 us before it is over; the next one starts 5 us late.
    assert (pause.duration_ns, pause.before, pause.after) == (100 * MS + 40 * US, 40, 40)
    assert "one pause" in rank.window.runs_once
    assert "launch-bound" not in found.verdict
    assert found.analyses.gains.state == "not_measured"
    assert [r.code for r in found.rules if r.gain is not None] == []


def test_a_pause_in_a_window_that_was_given_is_the_users(tmp_path: Path) -> None:
    job = Job()
    paused(job, 1, 100 * MS)
    found = job.measured(tmp_path, WindowRequest(bounds_ns=(0, 100 * MS)))
    assert (found.window.pause, found.withheld) == (None, "")


@pytest.mark.parametrize(("passes", "left_out"), [(2, False), (3, True)])
def test_a_short_rest_must_repeat_to_stand_for_the_capture(
    tmp_path: Path, passes: int, left_out: bool
) -> None:
    """Passes of 4 ms behind 1 s of start-up with 10 kernels: three of them repeat."""
    job = Job()
    for i in range(10):
        job.kernel(100 * i * MS)
        job.thread.api("cuLibraryLoadData", (100 * i + 2) * MS, (100 * i + 99) * MS)
    job.passes(1_000 * MS, passes)
    start_up = job.measured(tmp_path).window.start_up
    assert start_up is not None
    assert start_up.left_out == left_out


@pytest.mark.parametrize(("pauses", "each"), [(4, 100 * MS), (2, 100 * MS), (1, 1 * MS)])
def test_pauses_that_come_back_or_are_short_are_the_job(tmp_path: Path, pauses: int, each: int) -> None:
    job = Job()
    paused(job, pauses, each)
    window = job.measured(tmp_path).window
    assert (window.pause, window.runs_once) == (None, "")


def stepped(job: Job, lengths: Sequence[int], first_call: str = "") -> None:
    """Steps of 40 kernels each; in the first one after 24 ms of a kernel every ms and 12 calls."""
    at = 0
    for i, length in enumerate(lengths):
        job.thread.range(f"step {i}", at, at + length)
        for k in range(24 if first_call and not i else 0):
            job.kernel(at + k * MS)
            if k % 2:
                job.thread.api(first_call, at + k * MS + 5 * US, at + (k + 1) * MS - 1)
        job.passes(at + (24 * MS if first_call and not i else 0), 1)
        at += length


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cudaMalloc"])
def test_a_cold_first_step_is_left_out(tmp_path: Path, call: str) -> None:
    job = Job()
    stepped(job, [100 * MS, 10 * MS, 10 * MS, 10 * MS, 10 * MS], call)
    found = job.diagnosed(tmp_path)
    (rank,) = found.ranks
    assert [s.name for s in rank.window.step_list] == ["step 1", "step 2", "step 3"]
    start_up = rank.window.start_up
    assert start_up is not None
    assert (start_up.steps, start_up.left_out, start_up.duration_ns) == (1, True, 100 * MS)
    assert start_up.loading_ns + start_up.allocation_ns == 12 * (1 * MS - 5 * US - 1)
    # The last one is, too: more than half of the others passes behind their work.
    assert rank.ledger_ns.total == rank.window.duration_ns == 30 * MS
    assert rank.window.runs_once == ""


@pytest.mark.parametrize(
    ("lengths", "call"),
    [
        ([100 * MS, 10 * MS, 10 * MS, 10 * MS], ""),  # long, and nothing tells why: a slow step
        ([30 * MS, 30 * MS, 30 * MS, 30 * MS], "cudaMalloc"),  # as long as the others
        ([100 * MS, 10 * MS, 10 * MS, 10 * MS], "cudaEventCreate"),
    ],
)
def test_first_steps_that_stay(tmp_path: Path, lengths: Sequence[int], call: str) -> None:
    job = Job()
    stepped(job, lengths, call)
    window = job.measured(tmp_path).window
    # The last one lacks the idle time that the others have behind their work.
    assert (window.steps, window.start_up) == (len(lengths) - 1, None)


def test_a_single_cold_step_promises_nothing(tmp_path: Path) -> None:
    job = Job()
    stepped(job, [100 * MS], "cuModuleLoadData")
    found = job.measured(tmp_path)
    # From the first kernel to the end of the last load, 24 ms, of 28 ms.
    assert found.window.start_up is not None
    assert (found.window.steps, "start-up" in found.withheld) == (1, True)


def test_the_period_is_that_of_the_passes(tmp_path: Path) -> None:
    job = Job()
    job.passes(0, 6)
    found = job.measured(tmp_path)
    period = found.window.period
    assert period is not None
    # 6 x 40 kernels, one every 100 us; the last pass ends with its last kernel, 35 us before a seventh began.
    assert (period.kernels, period.repeats, period.start_ns) == (40, 6, 5 * US)
    assert period.end_ns == 5 * US + 240 * 100 * US - 40 * US
    assert not period.optimizer


def sequence(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts).astype(np.int64)


BLOCK = np.arange(30)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (np.tile(BLOCK, 4), (0, 30, 4)),
        (sequence([90, 91], np.tile(BLOCK, 5), [92]), (2, 30, 5)),
        # Steps of three equal layers and a head: the layers repeat within a step, the whole over steps.
        (np.tile(sequence(np.tile(BLOCK, 3), np.arange(50, 60)), 4), (0, 100, 4)),
        # One kernel of 100 differs from step to step, as where tokens are routed.
        (sequence(*(sequence(np.arange(99), [200 + i]) for i in range(5))), (0, 100, 5)),
        # Two kernels in turn agree at every even distance; a step of them ends in a third.
        (np.tile(sequence(np.tile([0, 1], 100), [2]), 4), (0, 201, 4)),
        (np.tile(BLOCK, 2), None),  # twice is not enough
        (np.tile(np.arange(MIN_KERNELS - 1), 20), (0, 38, 10)),  # so short that two of them are one
        # The layers of one backward pass are not the job: forward and optimizer are 40 % of the kernels.
        (sequence(np.arange(100, 180), np.tile(BLOCK, 4)), None),
        (np.arange(500), None),
        (np.random.default_rng(1).integers(0, 12, 3_000), None),
    ],
)
def test_what_repeats_in_a_sequence(code: np.ndarray, expected: tuple[int, int, int] | None) -> None:
    assert repetition(code.astype(np.int64)) == expected


@pytest.mark.parametrize(
    ("name", "kernels", "repeats"),
    some(
        [("ddp_nccl_metadata_a100_rank0of2", 893, 3), ("dlrm_layernorm_a100_rank3of8", 1_383, 6)],
        lambda case: case[2] == 3,
    ),
)
def test_the_period_of_real_captures_is_their_step(
    shared_traces: Path, name: str, kernels: int, repeats: int
) -> None:
    """Both have step ranges, and optimizer ranges that would do. Without: as many steps, of the same mean."""
    trace = read_trace(shared_traces / "kineto" / f"{name}.json.gz")
    (known,), _ = measure_trace(trace, WindowRequest())
    names = [s.replace("ProfilerStep", "part ").replace("Optimizer.step", "update") for s in trace.strings]
    (found,), _ = measure_trace(replace(trace, strings=names), WindowRequest())
    period = found.window.period
    assert period is not None
    assert (period.kernels, period.repeats, period.optimizer) == (kernels, repeats, True)
    mean_ns = known.window.duration_ns / known.window.steps
    assert (known.window.steps, period.mean_ns) == (repeats, pytest.approx(mean_ns, rel=0.01))


def test_a_kernel_that_differs_in_every_other_repetition_does_not_double_the_period() -> None:
    """Whatever the chance by which kinds of kernels count as 1 or -1."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        length = int(rng.integers(51, 90))
        kinds = int(rng.integers(MIN_KERNELS, length))
        usual = rng.permutation(length) % kinds
        other = usual.copy()
        at = rng.integers(length)
        other[at] = (other[at] + rng.integers(1, kinds)) % kinds
        assert repetition(np.concatenate([usual, other] * 12).astype(np.int64)) == (0, length, 24)
