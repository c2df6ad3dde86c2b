"""Edits: traces of known answer, faults that were planted, and what holds for any graph."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.buckets import other_bytes
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host import without_host_time, without_launches
from perfdoc.simulator.replay.edits.kernels import norms_alone
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.messages import fitted_line
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.edits.pipeline import without_recompute
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.events import NcclPayload
from tests.captures.timeline import one_gpu
from tests.planted.job import KINDS, JobSpec
from tests.planted.spec import Late
from tests.simulator.rebuilt_of import after, as_dp, length, planted
from tests.simulator.scaled import scaled_communication, scaled_kernels

US = 1_000
LATE = Late(rank=2, extra_ns=400_003)
MIXED = KINDS["tp2_pp2_dp2"]

FAULTS: dict[str, tuple[JobSpec, JobSpec, Sequence[Edit]]] = {
    "a late rank": (replace(MIXED, late=LATE), MIXED, [without_straggler(2, "tp")]),
    "slow data": (
        replace(KINDS["dp4"], data_ns=2_150_000),
        replace(KINDS["dp4"], data_ns=0),
        [without_host_time("data")],
    ),
    "norms beside communication": (
        replace(KINDS["ep4"], norm_contended_ns=58_000),
        replace(KINDS["ep4"], norm_contended_ns=20_011),
        [norms_alone()],
    ),
    "slow messages": (
        replace(KINDS["pp4_vpp2_dp2"], pp_transfer_ns=900_011),
        replace(KINDS["pp4_vpp2_dp2"], pp_transfer_ns=0),
        [scaled_communication("pp", 0)],
    ),
    "all at once": (
        replace(MIXED, late=LATE, data_ns=2_150_000, norm_contended_ns=50_000),
        replace(MIXED, data_ns=0, norm_contended_ns=20_011),
        [without_straggler(2, "tp"), without_host_time("data"), norms_alone()],
    ),
}
"""(with the fault, without it, what takes it away)."""


@pytest.mark.parametrize(
    "name", some(FAULTS, FAULTS.keys() - {"slow messages", "a late rank", "all at once"})
)
def test_an_edit_recovers_what_the_fault_cost(name: str, tmp_path: Path) -> None:
    """The cost is the difference of two jobs that were laid down apart; the edit sees the first only."""
    faulty, sound, edits = FAULTS[name]
    before, rebuilt = planted(faulty, tmp_path / "faulty")
    wanted, _ = planted(sound, tmp_path / "sound")
    assert before.measured_ns is not None
    assert wanted.measured_ns is not None
    cost = before.measured_ns - wanted.measured_ns
    assert cost > 100_000
    assert length(rebuilt) - after(rebuilt, *edits) == pytest.approx(cost, rel=0.02)


def test_launches_of_a_stretch_go(tmp_path: Path) -> None:
    """Three launches of 10 us with 50 us of Python between them; each kernel starts 8 us after its call began
    and runs for 5. Together: the first call [0, 10), the others at 10, taking nothing; a kernel starts 0 us
    after such a call (8 were inside it), and 1.2 behind the one before on the stream, as none here was queued
    to show less: [8, 13), [14.2, 19.2), [20.4, 25.4). The window began at 8: 17.4 us."""
    builder, thread, device = one_gpu()
    for i in range(3):
        at = i * 60 * US
        device.kernel(GEMM, at + 8 * US, at + 13 * US, stream=7, launch=(thread, at, at + 10 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert length(rebuilt) == 125 * US
    assert after(rebuilt, without_launches()) == 17_400


def test_nothing_starts_before_it_is_launched(tmp_path: Path) -> None:
    """As above, every kernel on a stream of its own: the second and third are launched at 10 and start then,
    not at 8 as the 8 us from their calls' starts less the 10 that the calls are shorter would have it."""
    builder, thread, device = one_gpu()
    for i in range(3):
        at = i * 60 * US
        device.kernel(GEMM, at + 8 * US, at + 13 * US, stream=7 + i, launch=(thread, at, at + 10 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    edited = without_launches().apply(rebuilt)
    kernels = edited.graph.kind == TaskKind.COMPUTE
    assert (schedule(edited.graph).start_ns[kernels]).tolist() == [8 * US, 10 * US, 10 * US]


def test_a_wait_ends_a_stretch(tmp_path: Path) -> None:
    """A launch [0, 10), kernel [8, 13); a synchronisation [20, 30), which nothing is pending for; a launch
    [60, 70), kernel [68, 73). Nothing can go: 73 - 8 = 65 us."""
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 8 * US, 13 * US, stream=7, launch=(thread, 0, 10 * US))
    thread.api("cudaStreamSynchronize", 20 * US, 30 * US)
    device.kernel(GEMM, 68 * US, 73 * US, stream=7, launch=(thread, 60 * US, 70 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert after(rebuilt, without_launches()) == length(rebuilt) == 65 * US


def test_communication_that_is_overlapped_holds_up_the_optimizer_only(tmp_path: Path) -> None:
    """A step with a GEMM [20, 100), an all-reduce [20, 200) on stream 20 that stream 7 waits for before the
    next GEMM [203, 300) and the optimizer's kernel [300, 340). Overlapped, the second GEMM follows the first
    and ends at 197 (or a launch latency later); the optimizer's kernel waits for the all-reduce until 200 and
    ends at 240: 220 us from the window's start at 20."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 40 * US)
    device.kernel(GEMM, 20 * US, 100 * US, stream=7, launch=(thread, 1 * US, 3 * US))
    device.kernel(ALL_REDUCE, 20 * US, 200 * US, stream=20, launch=(thread, 4 * US, 5 * US))
    record = device.record_event(20, launch=(thread, 6 * US, 7 * US))
    device.wait_event(7, record, launch=(thread, 8 * US, 9 * US))
    device.kernel(GEMM, 203 * US, 300 * US, stream=7, launch=(thread, 10 * US, 15 * US))
    thread.range("perfdoc.optimizer", 16 * US, 30 * US)
    device.kernel(GEMM, 300 * US, 340 * US, stream=7, launch=(thread, 18 * US, 20 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert length(rebuilt) == 320 * US
    assert after(as_dp(rebuilt), overlapped("dp")) == pytest.approx(220 * US, abs=1 * US)
    with pytest.raises(ValueError, match="no dp communication"):
        overlapped("dp").apply(rebuilt)


def test_a_line_through_two_sizes() -> None:
    """100 bytes in 1,200 ns and 300 in 1,600: 2 ns a byte, 1,000 ns of latency."""
    latency, per_byte = fitted_line(np.array([100, 300, 300]), np.array([1200, 1600, 1600]))
    assert (round(latency, 6), round(per_byte, 6)) == (1000, 2)
    assert fitted_line(np.array([100, 300]), np.array([100, 500])) == (0.0, pytest.approx(1.6))
    assert fitted_line(np.array([100, 300]), np.array([500, 100])) == (300.0, 0.0)
    with pytest.raises(ValueError, match="two collective sizes"):
        fitted_line(np.array([100, 100]), np.array([1, 2]))


def test_larger_buckets_save_latency(tmp_path: Path) -> None:
    """Four all-reduces of one rank, each after 100 us of compute: 1 MB in 30 us, 1 MB, 1 MB, 2 MB in 50 us.
    The line is 10 us + 20 us/MB. Buckets of 3 MB: the third carries 3 MB in 70 us, the fourth stays; buckets
    of 9 MB: the fourth carries 5 MB in 110 us, the others nothing."""
    size = np.array([10**6, 10**6, 10**6, 2 * 10**6])
    took = np.array([30, 30, 30, 50]) * US
    builder, thread, device = one_gpu()
    for i, (n, t) in enumerate(zip(size.tolist(), took.tolist(), strict=True)):
        at = i * 200 * US
        payload = NcclPayload(communicator=5, bytes=n, reduction="Sum")
        thread.range("ncclAllReduce", at, at + 5 * US, domain="NCCL", payload=payload)
        launch = (thread, at + US, at + 2 * US)
        device.kernel(ALL_REDUCE, at + 10 * US, at + 10 * US + t, stream=20, launch=launch)
    rebuilt = as_dp(rebuild_rank(view_of(builder, tmp_path)))
    communicates = rebuilt.graph.kind == TaskKind.COMMUNICATION
    assert rebuilt.bytes[communicates].tolist() == size.tolist()
    for bucket, wanted in ((3 * 10**6, [0, 0, 70, 50]), (9 * 10**6, [0, 0, 0, 110])):
        edited = rebucketed(bucket).apply(rebuilt)
        assert (edited.graph.duration_ns[communicates] / US).tolist() == pytest.approx(wanted)
    with pytest.raises(ValueError, match="smaller than those"):
        rebucketed(1024).apply(rebuilt)


EDITS = {
    "half compute": scaled_kernels(None, 0.5),
    "half gemm": scaled_kernels(KernelClass.GEMM, 0.5),
    "launches": without_launches(),
    "norms": norms_alone(),
    "data": without_host_time("data"),
    "dp": overlapped("dp"),
    "unknown": scaled_communication("unknown", 0.3),
    "straggler": without_straggler(1, "dp"),
    "bytes": other_bytes(0.5),
    "no recompute": without_recompute(),
}


@functools.cache
def first_rank(path: Path) -> Rebuilt:
    """Edits leave it as it is: another test holds them to that."""
    return rebuild_rank(views_of(read_trace(path))[0])


@pytest.mark.parametrize(
    "name",
    some(
        [
            "nsys/ddp_2gpu_rtx3090.sqlite",
            "nsys/sp_2gpu_before.sqlite",
            "nsys/gpt_small_full_step_a100.sqlite",
        ],
        ["nsys/ddp_2gpu_rtx3090.sqlite"],
    ),
)
@pytest.mark.parametrize("edit", EDITS)
def test_what_only_shortens_never_lengthens(shared_traces: Path, name: str, edit: str) -> None:
    """On real traces; an edit that has nothing to act on says so."""
    rebuilt = first_rank(shared_traces / name)
    try:
        edited = EDITS[edit].apply(rebuilt)
    except ValueError:
        pytest.skip("nothing in the trace that the edit acts on")
    assert length(edited) <= length(rebuilt)
