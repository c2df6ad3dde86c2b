"""What captures of strangers show: slow devices without a rank, shared GPUs, hosts that allocate."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import analysed
from perfdoc.reports.outlook import next_thing
from perfdoc.traces.load import read_trace
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.device import DeviceBuilder
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.process import ThreadBuilder
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1_000
ATTENTION = "void flash::flash_fwd_kernel<x>(y)"
A100, V100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"
A100_40, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"


def written(folder: Path, gpu: str, *, attention_us: int) -> Path:
    """Six steps of 3 ms of two processes, which reduce what they computed: for 1,000 us, the second for 500
    in GEMMs at 1.8 times the first one's and so long in attention."""
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread, device = process.thread(), process.device(gpu_name=gpu if number else A100)
        for step in range(6):
            at = call = step * 3_000 * US
            end = at + 3_000 * US
            thread.range(f"step {step}", at, end - 1)
            for name, us in ((GEMM, 900 if number else 500), (ATTENTION, attention_us if number else 500)):
                device.kernel(name, at, at + us * US, launch=(thread, call, call + 1))
                at, call = at + us * US, call + 2
            device.kernel(ALL_REDUCE, at, end, stream=20, launch=(thread, call, call + 1))
    return write_nsys_sqlite(builder.build(), folder / "report.sqlite")


@pytest.mark.parametrize(
    ("gpu", "attention_us", "shown"),
    [
        (V100, 900, f"another model ({V100}, the others' {A100}): give it less"),
        # Of the same speed, or faster: the kernels tell.
        (
            A100_40,
            500,
            f"the lengths of its sequences. Its GPU is another model ({A100_40}, the others' {A100})",
        ),
        (A100.removeprefix("NVIDIA "), 500, "the lengths of its sequences."),
        (H100, 900, "All its kernels take 1.8 times as long: a slow GPU"),
        (V100, 500, "Only some of its kernels"),
        (A100, 900, "All its kernels take 1.8 times as long"),
        (A100, 500, "Only some of its kernels"),
    ],
)
def test_what_a_slow_device_shows(gpu: str, attention_us: int, shown: str, tmp_path: Path) -> None:
    path = written(tmp_path, gpu, attention_us=attention_us)
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    slow = said.ranks[1].label
    assert slow == "GPU 0, pid 1001"
    times = "1.8" if attention_us == 900 else "1.4"
    assert said.verdict.startswith(f"{slow} computes {times} times as long as its peer in every step")
    (rule,) = [r for r in said.rules if r.code == "PD303"]
    assert shown in rule.remedy
    assert ("another model" in rule.remedy) == (gpu not in A100)
    assert rule.action in (f"Check {slow}", f"Check the work of {slow}")


@pytest.mark.parametrize("shared", [True, False])
def test_work_of_another_process_is_no_riddle(shared: bool, tmp_path: Path) -> None:
    """Two processes take turns on a GPU, 500 us each; all was launched before. On GPUs of their own nothing
    says why these are idle half of the time."""
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread = process.thread()
        device = process.device(uuid="GPU-one" if shared else None)
        for step in range(5):
            at = step * 1_000 * US
            thread.range(f"step {step}", at, at + 900)
            begin = 1_000 * US + at + number * 500 * US
            device.kernel(GEMM, begin, begin + 500 * US, launch=(thread, at + 10, at + 20))
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert ("shared" in said.verdict, "nothing in the capture" in said.verdict) == (shared, not shared)
    (rule,) = [r for r in said.rules if r.code == "PD901"]
    assert ("one process alone" in rule.remedy) == shared


def _event(cat: str, name: str, at: int, us: int, args: dict[str, object]) -> dict[str, object]:
    pid, tid = (0, 7) if cat == "kernel" else (4, 4)
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": us, "args": args}


def six_steps() -> tuple[TimelineBuilder, ThreadBuilder, DeviceBuilder, list[int]]:
    """Of 3 ms each, with when they begin."""
    builder, thread, device = one_gpu()
    starts = [step * 3_000 * US for step in range(6)]
    for step, at in enumerate(starts):
        thread.range(f"step {step}", at, at + 3_000 * US - 1)
    return builder, thread, device, starts


@pytest.mark.parametrize(
    ("calls", "first_alone", "allocates", "advised"),
    [
        (("cudaFree", "cudaMalloc"), False, "GPU memory.", "Allocate before"),
        (("cudaHostAlloc", "cudaFreeHost"), False, "pinned host memory.", "Pin host memory once"),
        (("cudaFree", "cudaMalloc"), True, "GPU memory in 1 of 6 steps.", ""),
        ((), False, "", "Find what"),
    ],
)
def test_a_host_that_allocates_does_not_launch_too_slowly(
    calls: tuple[str, ...], first_alone: bool, allocates: str, advised: str, tmp_path: Path
) -> None:
    """Steps of 3 ms: 1 ms of computing, then 2 ms in which the host frees and allocates, 900 us each; or in
    which it makes no call. Or it computes in all of a step, but for those 2 ms of the first."""
    builder, thread, device, starts = six_steps()
    for step, at in enumerate(starts):
        whole = first_alone and step > 0
        device.kernel(
            GEMM, at + 10 * US, at + (3_000 if whole else 1_000) * US, launch=(thread, at, at + 5 * US)
        )
        for i, call in enumerate(() if whole else calls):
            thread.api(call, at + (1_050 + i * 950) * US, at + (1_950 + i * 950) * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert said.verdict.partition("allocates or frees ")[2].startswith(allocates)
    assert ("allocates" in said.verdict) == bool(allocates)
    (rule,) = [r for r in said.rules if r.code == "PD201"]
    assert (rule.gain is not None) == bool(advised)
    assert advised in (rule.remedy or "")
    assert ("Keep allocations" in (rule.action or "")) == bool(allocates and advised)


@pytest.mark.parametrize("allocates", [True, False])
def test_shapes_that_are_recorded_slow_launches_and_no_allocation(allocates: bool, tmp_path: Path) -> None:
    """Steps of 3 ms, 1 ms of computing: what is allocated for 2 ms takes as long in any capture."""
    rows: list[dict[str, object]] = []
    for i in range(6):
        at = i * 3_000
        dims = {"Input Dims": [[8, 8]], "Input type": ["float"], "External id": i}
        calls = [("cudaLaunchKernel", 1, 4, 2 * i), ("cudaFree", 1_100, 1_890, 2 * i + 1)][: 1 + allocates]
        rows += [_event("cpu_op", "aten::mm", at, 8, dims)]
        rows += [_event("user_annotation", f"ProfilerStep#{i}", at, 2_999, {})]
        rows += [_event("cuda_runtime", n, at + begin, us, {"correlation": c}) for n, begin, us, c in calls]
        rows += [_event("kernel", GEMM, at + 10, 1_000, {"device": 0, "stream": 7, "correlation": 2 * i})]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"record_shapes": 1, "traceEvents": rows}))
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    states = {r.code: r.state for r in said.rules}
    assert ("allocates" in said.verdict, states["PD906"]) == (allocates, "passes" if allocates else "fires")
    (rule,) = [r for r in said.rules if r.code == "PD201"]
    assert ("1 cudaFree" in [e.value for e in rule.evidence]) == allocates
    assert ("record_shapes" in said.why) == (not allocates)


def test_a_wait_before_an_allocation_is_not_the_cause(tmp_path: Path) -> None:
    """Steps of 3 ms: the host waits until 1 ms of computing has ended, as PyTorch does before it gives memory
    back, then frees and allocates for 900 us each."""
    builder, thread, device, starts = six_steps()
    for at in starts:
        for part in range(2):
            launch = (thread, at + part * 5 * US, at + part * 5 * US + 4 * US)
            device.kernel(GEMM, at + (10 + part * 495) * US, at + (505 + part * 495) * US, launch=launch)
        for call, begin, end in (
            *(("cudaDeviceSynchronize", 20, 500), ("cudaDeviceSynchronize", 510, 1_005)),
            *(("cudaFree", 1_050, 1_950), ("cudaMalloc", 2_000, 2_900)),
        ):
            thread.api(call, at + begin * US, at + end * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert "the host allocates or frees GPU memory" in said.verdict
    states = {rule.code: rule.state for rule in said.rules}
    assert (states["PD208"], states["PD201"]) == ("passes", "fires")
    waits = [p for p in said.analyses.gains.predictions if p.key == "without_waits"]
    assert all("PD201" in p.left_out for p in waits)


def as_mpi(path: Path) -> None:
    """Calls of the C library become MPI's, as nsys --trace=mpi has them."""
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE OSRT_API RENAME TO MPI_COLLECTIVES_EVENTS")
        db.execute("ALTER TABLE MPI_COLLECTIVES_EVENTS RENAME COLUMN nameId TO textId")
    db.close()


@pytest.mark.parametrize(
    ("call", "words"),
    [("MPI_Allreduce", "through MPI"), ("fsync", "in fsync"), ("MPI_Barrier", "last to MPI_Barrier")],
)
def test_a_call_that_the_host_waits_in_is_named(call: str, words: str, tmp_path: Path) -> None:
    """Steps of 3 ms: 1 ms of computing, 32 MiB to the host and 1.3 ms later back, 300 us each; in between the
    host waits in a call, which is no batch and no optimizer."""
    builder, thread, device, starts = six_steps()
    for at in starts:
        device.kernel(GEMM, at + 10 * US, at + 1_000 * US, launch=(thread, at, at + 5 * US))
        for kind, begin in (("device_to_host", 1_000), ("host_to_device", 2_600)):
            call_at = at + (10 if begin == 1_000 else 2_580) * US
            launch = (thread, call_at, call_at + 5 * US)
            span = at + begin * US, at + (begin + 300) * US
            device.copy(kind, 32 << 20, *span, launch=launch, pinned=True)
        thread.synchronize("stream", at + 20 * US, at + 1_301 * US, device=device, stream=7)
        thread.os_call(call, at + 1_305 * US, at + 2_575 * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    if call.startswith("MPI"):
        as_mpi(path)
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    remedies = {rule.code: rule.remedy for rule in said.rules if rule.state == "fires"}
    assert words in remedies["PD201"]
    assert "--trace=osrt" not in remedies["PD201"]
    assert "PD203" not in remedies
    exchanges = call == "MPI_Allreduce"
    assert ("MPI" in remedies["PD204"]) is ("offloaded" not in remedies["PD204"]) is exchanges
    assert read_trace(path).capabilities["thread_states"].available is not call.startswith("MPI")


def test_copies_beside_a_short_exchange_are_not_what_is_exchanged(tmp_path: Path) -> None:
    """Steps of 3 ms: 1.2 ms of copies to the host and back, and 50 us in which a norm goes through MPI."""
    builder, thread, device, starts = six_steps()
    for at in starts:
        device.kernel(GEMM, at + 10 * US, at + 1_000 * US, launch=(thread, at, at + 5 * US))
        for kind, begin, call_us in (("device_to_host", 1_000, 10), ("host_to_device", 1_600, 20)):
            launch = (thread, at + call_us * US, at + (call_us + 5) * US)
            span = at + begin * US, at + (begin + 600) * US
            device.copy(kind, 32 << 20, *span, launch=launch, pinned=True)
        thread.synchronize("stream", at + 40 * US, at + 2_205 * US, device=device, stream=7)
        thread.os_call("MPI_Allreduce", at + 2_210 * US, at + 2_260 * US)
        call = at + 2_262 * US
        device.kernel(GEMM, at + 2_270 * US, at + 2_990 * US, launch=(thread, call, call + 4 * US))
    as_mpi(path := write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite"))
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    (remedy,) = [rule.remedy for rule in said.rules if rule.code == "PD204"]
    assert ("MPI" in remedy, "offloaded" in remedy) == (False, True)


@pytest.mark.parametrize(("compiles_ms", "leads"), [(300, True), (10, False)])
def test_a_first_step_that_is_most_of_the_mean_leads(compiles_ms: int, leads: bool, tmp_path: Path) -> None:
    """Ten steps of 3 ms; the host compiles behind the first kernel of the first, for 100 times as long or for
    three: 30 of 33 ms of the mean step, or 1 of 4."""
    builder, thread, device = one_gpu()
    at = 1_000 * US
    for step in range(10):
        length = (3_000 + (compiles_ms * 1_000 if step == 0 else 0)) * US
        for call in (at, at + length - 1_500 * US):
            device.kernel(GEMM, call + 10 * US, call + 1_490 * US, launch=(thread, call, call + 5 * US))
        thread.range(f"step {step}", at, at + length - US)
        at += length
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert said.verdict.startswith("step 0 takes ") is leads


@pytest.mark.parametrize("reduces", [ALL_REDUCE, ALL_REDUCE.replace("bf16", "f32")])
def test_overlap_hides_no_more_than_there_is_compute(reduces: str, tmp_path: Path) -> None:
    """Each step computes for 10 ms and reduces for 40: overlapped, it takes 40 of 50."""
    forward, backward = "void flash::flash_fwd_kernel<x>(y)", "void flash_bwd_kernel<x>(y)"
    names = [*[GEMM, forward] * 5, *[backward, GEMM] * 5]
    builder = TimelineBuilder()
    for number in range(2):
        process = builder.process(pid=1000 + number)
        thread, device = process.thread(), process.device(number)
        for step in range(6):
            at = (1_000 + 50_000 * step) * US
            for i, name in enumerate((*names, reduces)):
                begin, call = at + (200 + i * 500) * US, at + i * 5 * US
                end, stream = (at + 50_200 * US, 20) if name == reduces else (begin + 500 * US, 7)
                device.kernel(name, begin, end, stream=stream, launch=(thread, call, call + 4 * US))
            thread.range(f"step {step}", at - US, at + 49_000 * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    (rule,) = [rule for rule in said.rules if rule.code == "PD101"]
    assert rule.gain is not None
    assert rule.gain.high_ms == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(("each_us", "told"), [(250, True), (2, False)])
def test_kernels_that_wait_for_pages_are_no_sound_compute(each_us: int, told: bool, tmp_path: Path) -> None:
    """Two kernels of 1 ms with three groups of 256 faults in them, 750 of 2,000 us or 6."""
    builder, thread, device = one_gpu()
    for at in (1_000_000, 2_001_000):
        device.kernel("spmv", at, at + 1_000_000, launch=(thread, at - 500_000, at - 490_000))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (start INT, end INT, numberOfPageFaults INT)")
        for at in (1_100_000, 1_600_000, 2_200_000):
            db.execute(
                f"INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS VALUES ({at}, {at + each_us * 1_000}, 256)"
            )
    db.close()
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert ("768 page faults of the GPU, in managed memory, take 0.8 of 2.0 ms" in said.why) is told
    assert ("no large loss" in said.verdict) is not told
    assert ("cudaMemPrefetchAsync" in next_thing(said)[1]) is told


def test_no_more_is_promised_than_communication_is_beside_no_compute(tmp_path: Path) -> None:
    """Four GPUs compute 600 us, then copy to each other for 400 us, four times over: 1.6 of 4 ms."""
    builder = TimelineBuilder()
    for rank in range(4):
        process = builder.process(pid=1000 + rank)
        thread, device = process.thread(), process.device(rank)
        for at in range(1_000 * US, 5_000 * US, 1_000 * US):
            device.kernel(GEMM, at, at + 600 * US, launch=(thread, at - 40 * US, at - 35 * US))
            launch = (thread, at - 30 * US, at - 25 * US)
            device.copy("peer_to_peer", 16 << 20, at + 600 * US, at + 1_000 * US, launch=launch)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    (gain,) = [rule.gain for rule in said.rules if rule.code == "PD100"]
    assert gain is not None
    assert gain.high_ms == pytest.approx(1.6, abs=0.01)


def test_gpus_that_wait_for_each_other_are_not_launched_too_late(tmp_path: Path) -> None:
    """Steps of 1 ms: one GPU works for 490 us, then the other, whose kernel was launched with it; the
    host waits for it, and launches both again. All of the time one of them works."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, first, second = process.thread(), process.device(0), process.device(1)
    for step in range(6):
        at = step * 1_000 * US
        thread.range(f"step {step}", at, at + 999 * US)
        first.kernel(GEMM, at + 10 * US, at + 500 * US, launch=(thread, at, at + 5 * US))
        second.kernel(GEMM, at + 500 * US, at + 990 * US, launch=(thread, at + 5 * US, at + 10 * US))
        thread.synchronize("stream", at + 12 * US, at + 993 * US, device=second, stream=7)
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert "take turns" in said.verdict
    assert [r.state for r in said.rules if r.code in ("PD201", "PD208")] == ["passes", "passes"]
    row, words = next_thing(said)
    assert (row, "one process a GPU" in words) == (None, True)


@pytest.mark.parametrize(
    ("kernels", "pid", "gpu", "ranks"), [(1, 0, 1, 1), (2, 0, 1, 2), (1, 1, 0, 1), (1, 1, 1, 2)]
)
def test_what_hardly_works_is_no_rank(kernels: int, pid: int, gpu: int, ranks: int, tmp_path: Path) -> None:
    """200 kernels of 10 us; on another GPU of the process, or by another on the same, 1 or 2 of 1 us: 0.5 %
    or 1 %. The only GPU of a process that no other uses is that of a rank, which waits or has crashed."""
    builder = TimelineBuilder()
    processes = [builder.process(pid=1000 + number) for number in range(2)]
    for number, (of, at_gpu, count, us) in enumerate(((0, 0, 200, 10), (pid, gpu, kernels, 1))):
        uuid = f"00000000-0000-4000-8000-00000000000{at_gpu}"
        thread, device = processes[of].thread(), processes[of].device(number, uuid=uuid)
        for i in range(count):
            at = 20 * i * US
            device.kernel(GEMM, at + 5 * US, at + (5 + us) * US, launch=(thread, at, at + US))
    path = write_nsys_sqlite(builder.build(), tmp_path / "report.sqlite")
    said = analysed(AnalysisRequest(captures=(path,), jobs=1)).diagnosis
    assert len(said.ranks) == ranks
    found = [q for q in said.quality if q.code == "device-without-kernels"]
    assert [f"only {kernels} kernel" in q.message for q in found] == [True] * (2 - ranks)
