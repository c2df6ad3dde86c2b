"""GPU memory that a capture recorded: CUDA's allocations in an Nsight export, PyTorch's in a trace."""

from __future__ import annotations

import gzip
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.memory.job import RankMemory
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.reports.screen import render_screen
from perfdoc.results import Diagnosis
from perfdoc.results.memory import DeviceMemory
from perfdoc.traces.damage import CODE
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.nsys_parquet import write_nsys_parquet
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu

US, MIB, GIB = 1_000, 1 << 20, 1 << 30
ORIGIN = 1_750_000_000_000_000_000
COLUMNS = (
    *("start", "globalPid", "deviceId", "contextId", "address", "pc", "bytes", "memKind"),
    *("memoryOperationType", "name", "correlationId", "localMemoryPoolAddress"),
    *("localMemoryPoolReleaseThreshold", "localMemoryPoolSize", "localMemoryPoolUtilizedSize"),
    *("importedMemoryPoolAddress", "importedMemoryPoolProcessId"),
)
"""Of CUDA_GPU_MEMORY_USAGE_EVENTS, as nsys 2024.2 has them."""
ALLOC, FREE = 0, 1
PINNED, DEVICE, ARRAY, MANAGED, STATIC = 1, 2, 3, 4, 5


def job(*, steps: int = 4) -> TimelineBuilder:
    """Steps of 100 us on one GPU, each of one GEMM; the first begins at 1,000 us. And one that is left out:
    it lacks the 20 us that others idle behind their work."""
    builder, thread, device = one_gpu()
    for i in range(steps + 1):
        at = (1_000 + 100 * i) * US
        thread.range(f"step {i}", at, at + 90 * US)
        device.kernel(GEMM, at + 10 * US, at + 80 * US, launch=(thread, at, at + 5 * US))
    return builder


def event(at_us: int, what: int, address: int, size: int, kind: int = DEVICE, **more: int) -> dict[str, Any]:
    """One row; `pool` and `pool_bytes` are of a memory pool."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"start": at_us * US, "globalPid": -1, "deviceId": more.get("device", 0), "contextId": 1, "pc": 0}
    row |= {"address": address, "bytes": size, "memKind": kind, "memoryOperationType": what}
    row |= {"localMemoryPoolAddress": more.get("pool"), "localMemoryPoolSize": more.get("pool_bytes")}
    return row


def export(events: list[dict[str, Any]], folder: Path, builder: TimelineBuilder | None = None) -> Path:
    """The job's export with these rows in the table; each is of the process that ran the kernels."""
    path = write_nsys_sqlite((builder or job()).build(), folder / "memory.sqlite")
    db = sqlite3.connect(path)
    with db:
        db.execute("DROP TABLE IF EXISTS CUDA_GPU_MEMORY_USAGE_EVENTS")
        db.execute(f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({', '.join(COLUMNS)})")
        (pid,) = db.execute("SELECT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1").fetchone()
        for row in events:
            cells = [pid if cell == -1 else cell for cell in row.values()]
            db.execute(
                f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES ({', '.join('?' * len(cells))})", cells
            )
    db.close()
    return path


def diagnosed(path: Path) -> Diagnosis:
    return diagnose([measure_capture(path, WindowRequest())])


def memory_of(path: Path) -> DeviceMemory:
    (found,) = diagnosed(path).analyses.memory.devices
    return found


PLANTED = [
    event(100, ALLOC, 0x1000, 4 * GIB),  # parameters, before the steps
    event(200, ALLOC, 0x2000, 9 * GIB),  # read for a check, and freed before the steps
    event(300, FREE, 0x2000, 9 * GIB),
    event(1_050, ALLOC, 0x2000, 2 * GIB),
    event(1_120, ALLOC, 0x3000, 1 * GIB),  # 7 GiB
    event(1_150, FREE, 0x2000, 0),  # whose size nobody wrote
    event(1_160, FREE, 0x9000, 512 * MIB),  # older than the recording
    event(1_250, ALLOC, 0x5000, 64 * MIB, PINNED),
    event(1_260, ALLOC, 0x6000, 8 * GIB, MANAGED),
    event(1_270, ALLOC, 0x7000, 16 * MIB, ARRAY),
    event(1_280, ALLOC, 0x8000, 16 * MIB, STATIC),
    event(9_000, ALLOC, 0xA000, 40 * GIB),  # after the steps
]


def as_parquet(path: Path, folder: Path) -> Path:
    """The planted table beside the job's others, as a folder of Parquet files."""
    target = write_nsys_parquet(job().build(), folder / "memory_pqtdir")
    db = sqlite3.connect(path)
    rows = db.execute("SELECT * FROM CUDA_GPU_MEMORY_USAGE_EVENTS").fetchall()
    db.close()
    cells = {name: list(column) for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True)}
    pq.write_table(pa.table(cells), target / "CUDA_GPU_MEMORY_USAGE_EVENTS.parquet")
    return target


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_what_cuda_allocated_is_told_over_the_window(form: str, tmp_path: Path) -> None:
    path = export(PLANTED, tmp_path)
    found = memory_of(as_parquet(path, tmp_path) if form == "parquet" else path)
    # 512 MiB are older than the recording; the steps run from 1,000 to 1,390 us.
    assert (found.state, found.device, found.events) == ("measured", 0, 6)
    assert found.start_allocated_bytes == 4 * GIB + 512 * MIB
    assert found.peak_allocated_bytes == 7 * GIB + 512 * MIB
    assert found.end_allocated_bytes == 5 * GIB + 32 * MIB
    assert found.peak_time_ns == ORIGIN + 1_120 * US
    # Nothing says what is older and never freed: no reserved bytes, no headroom.
    assert (found.peak_reserved_bytes, found.headroom_bytes) == (None, None)
    assert "since the recording began" in found.reason
    # Ends of the steps: 1,090, 1,190, 1,290 and 1,390 us.
    assert found.growth.allocated_bytes == [
        6 * GIB + 512 * MIB,
        5 * GIB,
        5 * GIB + 32 * MIB,
        5 * GIB + 32 * MIB,
    ]
    assert found.series is not None
    assert max(found.series.category_bytes["unknown"]) == found.peak_allocated_bytes


def test_a_pool_holds_more_than_was_asked_of_it(tmp_path: Path) -> None:
    events = [
        event(100, ALLOC, 0x1000, 1 * GIB),  # outside of pools
        event(1_010, ALLOC, 0x100, 300 * MIB, pool=0xF0, pool_bytes=512 * MIB),
        event(1_110, ALLOC, 0x200, 300 * MIB, pool=0xF0, pool_bytes=1_024 * MIB),
        event(1_120, ALLOC, 0x300, 10 * MIB, pool=0xE0, pool_bytes=32 * MIB),
        event(1_130, FREE, 0x200, 300 * MIB, pool=0xF0, pool_bytes=1_024 * MIB),
        event(1_140, FREE, 0x100, 300 * MIB, pool=0xF0, pool_bytes=0),
    ]
    found = memory_of(export(events, tmp_path))
    assert found.peak_allocated_bytes == 1_024 * MIB + 610 * MIB
    assert found.peak_reserved_bytes == 1_024 * MIB + 1_024 * MIB + 32 * MIB
    assert found.end_allocated_bytes == 1_024 * MIB + 10 * MIB
    assert found.end_reserved_bytes == 1_024 * MIB + 32 * MIB
    assert found.headroom_bytes is None


@pytest.mark.parametrize(
    ("first", "more", "reserved"),
    [
        # Of 300 MiB that are older and go with their pool, which then is empty.
        ([event(1_050, FREE, 0x100, 300 * MIB, pool=0xF0, pool_bytes=0)], 0, 300 * MIB),
        # Of 500 MiB older the pool gives back nothing: it holds at least those all the time.
        (
            [event(1_050 + i, FREE, 0x100 * i, 250 * MIB, pool=0xF0, pool_bytes=512 * MIB) for i in (1, 2)],
            0,
            512 * MIB,
        ),
        # Two pools, of which one begins by an allocation.
        (
            [
                event(1_020, ALLOC, 0x700, 100 * MIB, pool=0xE0, pool_bytes=128 * MIB),
                event(1_050, FREE, 0x100, 300 * MIB, pool=0xF0, pool_bytes=64 * MIB),
            ],
            100 * MIB,
            428 * MIB,
        ),
    ],
)
def test_a_pool_held_before_its_first_event_what_is_freed_of_it(
    first: list[dict[str, Any]], more: int, reserved: int, tmp_path: Path
) -> None:
    before = event(1_010, ALLOC, 0x9000, GIB)  # outside of pools, so that the window has what was before
    older = sum(row["bytes"] for row in first if row["memoryOperationType"] == FREE)
    found = memory_of(export([before, *first], tmp_path))
    assert found.peak_allocated_bytes == GIB + older + more
    assert found.peak_reserved_bytes == GIB + reserved
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes


@pytest.mark.parametrize(
    ("left_mib", "leak"),
    [
        ((64, 64, 64, 64), "64.0 MiB"),
        ((64, 60, 72, 64), "65.0 MiB"),  # about as much: graphs differ a little
        ((64, 64, 0, 64), ""),  # one step kept nothing
        ((512, 64, 8, 1), ""),  # caches that fill
        ((-64, -64, -64, -64), ""),
        ((0.125, 0.125, 0.125, 0.125), ""),  # of 4 GiB not worth a word
    ],
)
def test_a_leak_is_on_the_first_screen(left_mib: tuple[float, ...], leak: str, tmp_path: Path) -> None:
    """Five steps; what is allocated at the end of each is what the one before left and these MiB."""
    held, instants = 4 * GIB, [instant(0, 4 * GIB, 8 * GIB)]
    for step, left in enumerate((0, *left_mib)):
        held += int(left * MIB)
        instants += [instant(100 * step + 20, held + GIB, 8 * GIB), instant(100 * step + 85, held, 8 * GIB)]
    found = diagnosed(with_instants(instants, tmp_path, steps=5))
    (memory,) = found.analyses.memory.devices
    assert np.diff(memory.growth.allocated_bytes).tolist() == [int(left * MIB) for left in left_mib]
    screen = " ".join(render_screen(found, report="r").split())
    assert "Peak memory" in screen
    assert (f"each of 4 steps left {leak} more: a leak" in screen) == bool(leak)


def test_each_device_and_process_has_its_own(tmp_path: Path) -> None:
    """The same addresses on two GPUs of one process, and a third GPU on which nothing ran."""
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    for ordinal in (0, 1):
        device = process.device(ordinal)
        device.kernel(GEMM, 20 * US, 90 * US, launch=(thread, ordinal * 5 * US, (ordinal * 5 + 3) * US))
    events = [
        event(30, ALLOC, 0x1000, 1 * GIB),
        event(40, ALLOC, 0x1000, 2 * GIB, device=1),
        event(50, FREE, 0x1000, 1 * GIB),
        event(60, ALLOC, 0x1000, 70 * GIB, device=2),
    ]
    found = diagnosed(export(events, tmp_path, builder))
    assert [
        (m.device, m.peak_allocated_bytes, m.end_allocated_bytes) for m in found.analyses.memory.devices
    ] == [(0, GIB, 0), (1, 2 * GIB, 2 * GIB)]
    assert len(found.ranks) == 2


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (event(1_130, ALLOC, 0x4000, -5), 1),
        (event(1_130, ALLOC, 0x4000, 1 << 62), 1),
        (event(1_130, 7, 0x4000, GIB), 1),
        (event(-9, ALLOC, 0x4000, GIB), 1),
        (event(1 << 52, ALLOC, 0x4000, GIB), 1),
        (event(1_130, ALLOC, 0x4000, GIB, 99), 0),  # of no kind that is known
        (event(1_130, FREE, 0x2000, GIB), 0),  # freed a second time
        ({**event(1_130, ALLOC, 0x4000, GIB), "address": None, "bytes": None}, 1),
    ],
)
def test_rows_that_cannot_be_true_change_nothing(row: dict[str, Any], told: int, tmp_path: Path) -> None:
    events = [
        event(100, ALLOC, 0x1000, 4 * GIB),
        event(1_010, ALLOC, 0x2000, GIB),
        event(1_120, FREE, 0x2000, GIB),
    ]
    found = diagnosed(export([*events, row], tmp_path))
    (memory,) = found.analyses.memory.devices
    assert memory.peak_allocated_bytes == 5 * GIB
    assert memory.end_allocated_bytes == 4 * GIB
    said = [q.message for q in found.quality if q.code == CODE]
    assert sum("memory event" in m for m in said) == told


def test_a_table_that_is_none_costs_no_other_figure(tmp_path: Path) -> None:
    rows = [{**row, "bytes": "many", "start": "never"} for row in PLANTED]
    found = diagnosed(export(rows, tmp_path))
    assert found.analyses.memory.devices == []
    assert found.ranks[0].window.steps == 4
    assert any("12 memory events set aside" in q.message for q in found.quality)


def test_an_address_given_again_was_freed_before(tmp_path: Path) -> None:
    events = [event(1_010 + i, ALLOC, 0x1000, GIB) for i in range(50)]
    assert memory_of(export(events, tmp_path)).peak_allocated_bytes == GIB


def test_sizes_beyond_all_sums_are_not_summed(tmp_path: Path) -> None:
    huge = [event(1_010 + i % 80, ALLOC, i, 1 << 48, pool=i, pool_bytes=1 << 48) for i in range(1, 20_000)]
    found = diagnosed(export(huge, tmp_path))
    assert found.analyses.memory.devices == []
    assert any("19,999 memory events set aside" in q.message for q in found.quality)


def test_a_snapshot_goes_before_what_a_capture_shows(tmp_path: Path) -> None:
    path = export(PLANTED, tmp_path)
    capture = measure_capture(path, WindowRequest())
    (shown,) = diagnose([capture]).analyses.memory.devices
    assert shown.path == str(path)
    better = replace(shown, path="snapshot.pickle", peak_allocated_bytes=GIB, reason="")
    with_snapshot = RankMemory(devices=[better], process=None, sha256={})
    assert [m.path for m in diagnose([capture], [], [with_snapshot]).analyses.memory.devices] == [better.path]
    nothing = RankMemory(devices=[replace(better, state="not_measured")], process=None, sha256={})
    assert [m.path for m in diagnose([capture], [], [nothing]).analyses.memory.devices] == [
        better.path,
        str(path),
    ]


def test_a_capture_without_the_table_says_nothing_of_memory(tmp_path: Path) -> None:
    path = write_nsys_sqlite(job().build(), tmp_path / "plain.sqlite")
    memory = diagnosed(path).analyses.memory
    assert (memory.state, memory.devices) == ("not_measured", [])


def with_instants(instants: list[dict[str, Any]], folder: Path, *, steps: int = 4) -> Path:
    """The job as a PyTorch trace, with `[memory]` instants of its allocator."""
    path = write_kineto(job(steps=steps).build(), folder / "memory.json", pid=1000)
    text = path.read_bytes()
    document = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)
    call = next(e for e in document["traceEvents"] if e.get("cat") == "cuda_runtime")
    first = min(e["ts"] for e in document["traceEvents"] if e.get("cat") == "user_annotation")
    for args in instants:
        at = first + args.pop("us")
        document["traceEvents"].append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": at, "args": args}
            | {"pid": call["pid"], "tid": call["tid"]}
        )
    path = folder / "with_memory.json"
    path.write_text(json.dumps(document))
    return path


def instant(
    us: int, allocated: object, reserved: object, kind: object = 1, device: object = 0
) -> dict[str, Any]:
    """What PyTorch's profiler writes at each allocation and free (profile_memory)."""
    return {"us": us, "Total Allocated": allocated, "Total Reserved": reserved, "Device Type": kind} | {
        "Device Id": device,
        "Bytes": 512,
        "Addr": 1,
    }


def test_pytorchs_own_count_is_whole(tmp_path: Path) -> None:
    instants = [
        instant(-500, 9 * GIB, 9 * GIB),  # long before the steps
        instant(-400, 3 * GIB, 12 * GIB),
        instant(30, 5 * GIB, 12 * GIB),
        instant(60, 4 * GIB, 12 * GIB),
        instant(160, 6 * GIB, 14 * GIB, kind=6),  # as ROCm numbers its devices
        instant(170, 90 * GIB, 90 * GIB, kind=0, device=-1),  # the CPU's
        instant(250, 4 * GIB, 14 * GIB),
        instant(300, -1, GIB),
        instant(310, 1 << 63, GIB),
        instant(320, "much", None),
        instant(325, 1 << 50, GIB),
        instant(330, 50 * GIB, 50 * GIB, device=3),  # a GPU on which nothing ran
    ]
    whole = diagnosed(with_instants(instants, tmp_path))
    assert any("4 memory events set aside" in q.message for q in whole.quality)
    (found,) = whole.analyses.memory.devices
    assert found.reason == ""
    assert (found.start_allocated_bytes, found.peak_allocated_bytes) == (3 * GIB, 6 * GIB)
    assert (found.end_allocated_bytes, found.peak_reserved_bytes) == (4 * GIB, 14 * GIB)
    assert found.growth.allocated_bytes == [4 * GIB, 6 * GIB, 4 * GIB, 4 * GIB]


@pytest.mark.parametrize(
    ("name", "peak", "reserved"),
    [
        # The largest Total Allocated and Total Reserved of its GPU's instants.
        ("qwen15_05b_forward_h100", 2_088_508_416, 2_629_828_608),
        ("bert_small_forward_h100", 101_305_344, 121_634_816),
    ],
)
def test_real_traces_with_profile_memory(name: str, peak: int, reserved: int, shared_traces: Path) -> None:
    found = diagnosed(shared_traces / "shapes" / f"{name}.json.gz")
    (memory,) = found.analyses.memory.devices
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (peak, reserved)
    total = found.ranks[0].gpu.memory_bytes
    assert total is not None
    assert memory.headroom_bytes == total - reserved
