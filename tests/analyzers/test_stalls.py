"""Waits for data that no range names, and everything that looks like them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Literal

import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.activity import host_activity
from perfdoc.analyzers.ledger.steps import build_ledger
from perfdoc.results.host import HostActivity
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.loader_jobs import MS, STEPS, Between, both, calling, job, off, on, silent
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.process import ProcessBuilder, ThreadBuilder
from tests.captures.timeline import TimelineBuilder

PAUSES = STEPS - 1
WHOLE = PAUSES * (80 * MS - 10_000)
"""Idle time before the calls that end the pauses."""
OFF = PAUSES * (80 * MS - 60_000)
"""What of it the thread is off the CPU, or in a call of the C library."""


def of(builder: TimelineBuilder, folder: Path) -> tuple[HostActivity, dict[str, int]]:
    """The host, and the ledger's idle leaves, which every test's figures sum to."""
    view = view_of(builder, folder)
    host, _ = host_activity(view)
    idle = ledger(view)
    split = host.idle_split
    assert (split.host_ns, host.data.idle_ns or 0) == (idle["host"], idle["data"])
    assert split.python_ns is not None
    assert (split.computing_ns or 0) + (split.waiting_ns or 0) <= split.python_ns
    return host, idle


def ledger(view: DeviceView) -> dict[str, int]:
    window = view.window
    idle = build_ledger(
        view.activity, window.start_ns, window.end_ns, view.idle_inputs, view.gaps
    ).idle.by_name
    return dict(idle)


def by_evidence(host: HostActivity) -> dict[str, int]:
    found = {e: getattr(host.data, f"idle_{e}_ns") for e in ("range", "thread", "position")}
    return {e: ns for e, ns in found.items() if ns}


@pytest.mark.parametrize("in_range", [False, True])
@pytest.mark.parametrize(
    ("between", "evidence", "ns"),
    [
        (off, "thread", OFF),
        (silent, "position", WHOLE),
        (calling("poll"), "thread", OFF),
        (calling("sem_clockwait"), "thread", OFF),
        (both(off, calling("pthread_cond_timedwait")), "thread", OFF),
    ],
)
def test_a_stall_between_steps(
    tmp_path: Path, between: Between, evidence: str, ns: int, *, in_range: bool
) -> None:
    # Whether the batch is fetched between two step ranges or at the start of the next one's.
    host, idle = of(job(between, in_range=in_range), tmp_path)
    assert by_evidence(host) == {evidence: ns}
    assert idle["host"] + idle["data"] == PAUSES * 80 * MS
    assert (host.data.count, host.data.steps_with) == (PAUSES, PAUSES)
    assert (host.data.worst_name, host.data.worst_step) == (None, "step 1")


def test_a_pause_at_the_end_of_a_steps_range_is_no_wait_for_a_batch(tmp_path: Path) -> None:
    # It logs there, or evaluates: a loop fetches behind the range, or at the start of the next one's.
    host, idle = of(job(silent, at_end=True), tmp_path)
    assert (by_evidence(host), idle["data"], idle["host"]) == ({}, 0, PAUSES * 80 * MS)
    assert host.idle_split.between_steps_ns == WHOLE
    host, _ = of(job(off, at_end=True), tmp_path)  # a thread that waits there may do so for one
    assert by_evidence(host) == {"thread": OFF}


@pytest.mark.parametrize(
    ("sent", "back_ms", "back", "data"),
    [
        (16 << 20, 1, 16 << 20, False),  # gradients for an optimizer on the CPU, then weights
        (32 << 20, 1, 16 << 20, False),  # of 4 bytes, of 2 bytes
        (16 << 20, 1, 1 << 20, True),  # predictions, then a batch
        ((16 << 20) - 1, 1, 16 << 20, True),  # figures
        (64 << 20, 12, 64 << 20, True),  # activations, back in the same step
        (64 << 20, 12, 40 << 20, True),  # what stays there comes back behind no pause
    ],
)
def test_what_comes_back_behind_a_pause_may_be_worked_on_in_it(
    tmp_path: Path, sent: int, back_ms: int, back: int, data: bool
) -> None:
    # Each step copies to the host 5 ms into its kernels, and back 1 ms or 12 ms into them: 20 ms, then 80 of
    # silence.
    def copies(process: ProcessBuilder, thread: ThreadBuilder) -> None:
        for step in range(STEPS):
            for kind, size, after in (("device_to_host", sent, 5), ("host_to_device", back, back_ms)):
                at = MS + step * 100 * MS + after * MS
                launch = thread, at - 20_000, at - 11_000
                process.devices[0].copy(kind, size, at, at + MS, stream=9, launch=launch)

    host, idle = of(job(silent, before=copies), tmp_path)
    assert by_evidence(host) == ({"position": WHOLE} if data else {})
    assert host.idle_split.offloaded_ns == (0 if data else WHOLE)
    assert idle["host"] + idle["data"] == PAUSES * 80 * MS


@pytest.mark.parametrize("saved_once", [False, True])
def test_losses_end_no_optimizers_copies_and_what_is_saved_once_is_none(
    tmp_path: Path, *, saved_once: bool
) -> None:
    # 64 MiB of gradients to the host, silence, a loss of 4 bytes, 32 MiB of weights back; or a checkpoint
    # in one step, and batches of 150 MiB in all.
    def copies(process: ProcessBuilder, thread: ThreadBuilder) -> None:
        def put(step: int, kind: Literal["device_to_host", "host_to_device"], size: int, us: int) -> None:
            at = MS + step * 100 * MS + us * 1_000
            launch = thread, at - 20_000, at - 11_000
            process.devices[0].copy(kind, size, at, at + 100_000, stream=9, launch=launch)

        for step in range(STEPS):
            if not saved_once:
                put(step, "device_to_host", 4, 500)
            put(step, "host_to_device", (150 if saved_once else 32) << 20, 1_000)
            if not saved_once or step == 1:
                put(step, "device_to_host", 100 << 20 if saved_once else 64 << 20, 5_000)

    host, _ = of(job(silent, before=copies), tmp_path)
    assert by_evidence(host) == ({"position": WHOLE} if saved_once else {})
    assert host.idle_split.offloaded_ns == (0 if saved_once else WHOLE)


def test_a_named_range_goes_before_all(tmp_path: Path) -> None:
    def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("my own loader", start, end)

    host, _ = of(job(both(off, named)), tmp_path)
    assert by_evidence(host) == {}, "nobody said what this name means, and it says what is done there"
    for name in ("next_batch", "[_TrainingEpochLoop].train_dataloader_next", "_next_data", "data_fetch"):

        def known(thread: ThreadBuilder, step: int, start: int, end: int, name: str = name) -> None:
            thread.range(name, start, end)

        host, _ = of(job(both(off, known)), tmp_path)
        assert by_evidence(host) == {"range": WHOLE}, name


def test_a_thread_that_computes_between_steps_waits_for_nothing(tmp_path: Path) -> None:
    host, idle = of(job(on), tmp_path)
    assert (host.data.state, idle["data"]) == ("not_measured", 0)
    # Off the CPU for 10 us at the start of a pause (while the device still works) and 10 at its end.
    assert host.idle_split.waiting_ns == PAUSES * 10_000
    assert host.idle_split.between_steps_ns == WHOLE - PAUSES * 10_000


@pytest.mark.parametrize(
    ("between", "kind", "call"),
    [
        (off, "other", None),
        (both(off, calling("pthread_mutex_lock")), "lock", "pthread_mutex_lock"),
        (calling("read"), "io", "read"),
        (both(off, calling("clock_nanosleep")), "sleep", "clock_nanosleep"),
    ],
)
def test_a_wait_inside_a_step_is_a_wait_and_not_data(
    tmp_path: Path, between: Between, kind: str, call: str | None
) -> None:
    host, idle = of(job(between, inside=True), tmp_path)
    assert idle["data"] == 0
    # In each of six steps 80 ms without the last 60 us.
    assert host.idle_split.waiting_ns == STEPS * (80 * MS - 60_000)
    assert [(w.kind, w.call, w.idle_ns) for w in host.idle_split.waits] == [
        (kind, call, STEPS * (80 * MS - 60_000))
    ]


def test_a_host_that_computes_inside_a_step(tmp_path: Path) -> None:
    host, _ = of(job(on, inside=True), tmp_path)
    split = host.idle_split
    assert (split.waiting_ns, split.between_steps_ns) == (STEPS * 10_000, 0)
    assert split.computing_ns is not None
    assert split.computing_ns >= STEPS * (80 * MS - 30_000)


def test_what_is_written_or_sent_is_no_batch(tmp_path: Path) -> None:
    for call in ("write", "fsync", "sendto"):
        host, idle = of(job(both(off, calling(call))), tmp_path)
        assert idle["data"] == 0, call
        assert [(w.kind, w.call) for w in host.idle_split.waits] == [("write", call)]


def test_the_interpreters_lock_is_told(tmp_path: Path) -> None:
    def gil(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("Waiting for GIL", start + 50_000, end - 50_000)

    host, idle = of(job(both(off, gil)), tmp_path)
    assert (idle["data"], host.idle_split.waiting_ns) == (0, OFF)
    assert [w.kind for w in host.idle_split.waits] == ["gil"]


@pytest.mark.parametrize(("stalled", "found"), [({2}, 0), ({1, 4}, 2), ({0, 1, 2, 3, 4}, 5)])
def test_one_pause_may_be_a_checkpoint(tmp_path: Path, stalled: set[int], found: int) -> None:
    host, idle = of(job(off, stalled=lambda step: step in stalled), tmp_path)
    # Nor do 100 us of waiting count anywhere.
    assert (host.data.count or 0, idle["data"]) == (found, found * (80 * MS - 60_000))


def test_ranges_say_what_else_is_done_there(tmp_path: Path) -> None:
    def named(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.range("checkpoint" if step % 2 else "log metrics", start + 20_000, end - 20_000)

    for between in (both(off, named), named):
        host, idle = of(job(between), tmp_path)
        assert idle["data"] == 0
        assert host.idle_split.between_steps_ns == 0


def test_an_epoch_around_all_steps_says_nothing(tmp_path: Path) -> None:
    def epoch(process: ProcessBuilder, main: ThreadBuilder) -> None:
        main.range("epoch 0", 0, 700 * MS)
        main.range("Holding GIL", 0, 700 * MS)

    host, _ = of(job(off, before=epoch), tmp_path)
    assert by_evidence(host) == {"thread": OFF}


def test_an_evaluation_between_steps_is_no_wait_for_a_batch(tmp_path: Path) -> None:
    # In each pause 10 kernels against 20 of a step, and the thread off the CPU between them.
    def evaluate(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        off(thread, step, start, start + 40 * MS)
        (device,) = thread.process.devices.values()
        for i in range(10):
            at = start + (41 + i) * MS
            device.kernel(GEMM, at, at + MS, launch=(thread, at - 10_000, at))

    _, idle = of(job(evaluate), tmp_path)
    assert idle["data"] == 0


def test_operators_between_steps_are_the_hosts_work(tmp_path: Path) -> None:
    """Of a PyTorch capture, which has no scheduling: `aten::stack` in the whole pause, or in its first ms."""
    for length_ms, data_ns in ((80, 0), (1, WHOLE)):

        def collate(thread: ThreadBuilder, step: int, start: int, end: int, ms: int = length_ms) -> None:
            thread.process.operator(thread, "aten::stack", start + 1_000, start + ms * MS)

        path = write_kineto(job(collate).build(), tmp_path / f"{length_ms}.json", 1000)
        (view,) = views_of(read_kineto(path))
        assert ledger(view)["data"] == data_ns
        between = host_activity(view)[0].idle_split.between_steps_ns
        assert between is not None
        assert between + data_ns == pytest.approx(WHOLE, abs=1)


def test_a_host_that_is_slow_everywhere_is_no_stall(tmp_path: Path) -> None:
    # Nothing is known of the thread; its pauses inside steps are as long as half of those between.
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    for step in range(6):
        begin = step * 100 * MS
        main.range(f"step {step}", begin, begin + 60 * MS)
        for at in (begin + 10 * MS, begin + 40 * MS):
            device.kernel(GEMM, at, at + 5 * MS, launch=(main, at - 10_000, at))
    _, idle = of(builder, tmp_path)
    assert idle["data"] == 0


def test_a_loader_without_its_name(shared_traces: Path, tmp_path: Path) -> None:
    """PyTorch's capture of a loader in the training process, its ranges taken out: they held 174.337 ms."""
    original = shared_traces / "kineto" / "resnet50_num_workers_0_v100.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(original.read_bytes()))
    rows = trace["traceEvents"] if isinstance(trace, dict) else trace
    kept = [row for row in rows if "DataLoader" not in str(row.get("name"))]
    assert len(rows) - len(kept) >= 6
    path = tmp_path / "nameless.json"
    path.write_text(
        json.dumps({"traceEvents": kept} if isinstance(trace, list) else {**trace, "traceEvents": kept})
    )
    (view,) = views_of(read_kineto(path))
    host, _ = host_activity(view)
    # The thread decodes and transforms pictures: it computes, and that is not said to be a wait for data.
    assert host.data.state == "not_measured"
    assert host.idle_split.between_steps_ns == pytest.approx(174_337_000, rel=0.02)


def test_perfdoc_marks_what_it_waits_for(tmp_path: Path) -> None:
    host, _ = of(job(silent, step_name="perfdoc.step"), tmp_path)
    assert by_evidence(host) == {"position": WHOLE}


def test_nothing_is_known_without_scheduling_rows(tmp_path: Path) -> None:
    host, _ = of(job(silent, inside=True), tmp_path)
    assert (host.idle_split.computing_ns, host.idle_split.waiting_ns) == (None, None)
    assert host.idle_split.waits == []


@pytest.mark.parametrize("other_computes", [True, False])
def test_a_thread_that_waits_for_another_one(tmp_path: Path, *, other_computes: bool) -> None:
    """Backward on a thread of its own: main waits for it for 30 ms of idle, and then launches.

    Steps of 100 ms: main launches 10 ms at 0, autograd's thread 10 ms at 20, main again at 60.
    """
    builder = TimelineBuilder()
    process = builder.process()
    main, autograd, device = process.thread(), process.thread(), process.device()
    for step in range(4):
        begin = step * 100 * MS
        main.range(f"step {step}", begin, begin + 99 * MS)
        for thread, at in ((main, begin + MS), (autograd, begin + 20 * MS), (main, begin + 60 * MS)):
            device.kernel(GEMM, at, at + 10 * MS, launch=(thread, at - 10_000, at))
        main.off_cpu(begin + 21 * MS, begin + 59 * MS)
        if other_computes:
            autograd.off_cpu(begin + 61 * MS, begin + 110 * MS)
        else:
            autograd.off_cpu(begin + 22 * MS, begin + 110 * MS)
    host, idle = of(builder, tmp_path)
    assert idle["data"] == 0
    # [30, 59) ms of each step while both are off the CPU.
    assert host.idle_split.waiting_ns == (0 if other_computes else 4 * 29 * MS)
