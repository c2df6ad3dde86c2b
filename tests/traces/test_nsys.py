"""One planted timeline, read back from every generation and container of Nsight export."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.results.quality import PAGES
from perfdoc.traces import CopyKind, RangeKind, SyncKind, Trace, TraceError
from perfdoc.traces.model import CAPABILITIES
from perfdoc.traces.nsys.read import read_nsys_parquet, read_nsys_sqlite
from tests.analyzers.tiny import trace_of
from tests.captures.events import NcclPayload
from tests.captures.nsys_parquet import write_nsys_parquet
from tests.captures.nsys_schemas import GENERATIONS, ExportOptions
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, TimelineBuilder, one_gpu

COMMUNICATOR = 13429301450432826988  # above 2^63; the one of ddp_2gpu_rtx3090


def planted(*, graph: bool = True) -> Timeline:
    """Two processes; the first uses its GPU 1, and everything that an export can hold."""
    t = TimelineBuilder(utc_origin_ns=1_700_000_000_000_000_123)
    a = t.process(pid=101)
    main = a.thread(tid=101, name="trainer")
    gpu = a.device(ordinal=1, gpu_name="NVIDIA H100 80GB HBM3", sm_count=132, memory_bytes=85_520_809_984)
    main.range("perfdoc.step 0", 0, 9_000)
    main.range("named", 10, 20, domain="mine")
    main.range("never closed", 30, None)
    main.range("crossing", 40, 60, kind="start_end")
    main.mark("here", 50)
    main.range(
        "ncclAllReduce", 200, 260, domain="NCCL", payload=NcclPayload(communicator=COMMUNICATOR, bytes=4096)
    )
    gpu.kernel(
        "gemm", 1000, 2000, full_name="void gemm<float>(int)", grid=(4, 3, 2), block=(128, 2, 1),
        launch=(main, 100, 110),
    )  # fmt: skip
    gpu.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 2000, 4000, stream=20, launch=(main, 210, 220))
    gpu.copy("host_to_device", 512, 4000, 4100, launch=(main, 300, 305))
    gpu.copy("peer_to_peer", 1024, 4200, 4300, launch=(main, 310, 315))
    gpu.memset(64, 4400, 4410, launch=(main, 320, 325))
    if graph:
        gpu.graph_launch(5, 5000, 6000, launch=(main, 400, 405))
    record = gpu.record_event(20, launch=(main, 500, 502))
    gpu.wait_event(7, record, launch=(main, 510, 512))
    main.synchronize("stream", 600, 700, stream=7, device=gpu)
    main.synchronize("device", 700, 7000, device=gpu)
    b = t.process(pid=202)
    b.device(ordinal=0).kernel("gemm", 1500, 2500, launch=(b.thread(tid=203), 1400, 1410))
    return t.build()


def has(generation: str, table: str) -> bool:
    from tests.captures.nsys_schemas import tables

    return table in tables(generation)


def check(trace: Trace, generation: str) -> None:
    k = {
        n: getattr(trace.kernels, n) for n in ("start_ns", "end_ns", "stream", "grid_blocks", "block_threads")
    }
    order = np.lexsort((trace.kernels.device, trace.kernels.start_ns))
    assert {n: v[order].tolist() for n, v in k.items()} == {
        "start_ns": [1000, 1500, 2000],
        "end_ns": [2000, 2500, 4000],
        "stream": [7, 7, 20],
        "grid_blocks": [24, 132, 132],
        "block_threads": [256, 128, 128],
    }
    assert trace.names(trace.kernels.name[order]) == [
        "gemm",
        "gemm",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ]
    assert trace.names(trace.kernels.full_name[order])[0] == "void gemm<float>(int)"
    devices = [trace.devices[i] for i in trace.kernels.device[order].tolist()]
    assert [(d.process, d.ordinal) for d in devices] == [(101, 1), (202, 0), (101, 1)]
    assert (devices[0].gpu_name, devices[0].sm_count) == ("NVIDIA H100 80GB HBM3", 132)
    assert all(d.rank is None for d in trace.devices), "an export without rank facts says nothing of ranks"

    kinds = {
        CopyKind(c): b for c, b in zip(trace.copies.kind.tolist(), trace.copies.bytes.tolist(), strict=True)
    }
    assert kinds == {CopyKind.HOST_TO_DEVICE: 512, CopyKind.PEER_TO_PEER: 1024, CopyKind.MEMSET: 64}

    if has(generation, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        g = trace.graph_launches
        assert (g.start_ns.tolist(), g.end_ns.tolist()) == ([5000], [6000])
        assert not trace.capabilities["graph_nodes"].available

    launched = {
        trace.strings[n]: (int(s), trace.threads[t].tid)
        for n, s, t in zip(
            trace.api_calls.name, trace.api_calls.start_ns, trace.api_calls.thread, strict=True
        )
        if s in (100, 1400)
    }
    assert {start for start, _ in launched.values()} <= {100, 1400}
    threads = {(t.process, t.tid): t.name for t in trace.threads}
    assert {(101, 101), (202, 203)} <= set(threads)
    assert threads[101, 101] == "trainer"

    r = trace.ranges
    ranges = {
        trace.strings[n]: (int(a), int(b), RangeKind(k), trace.strings[d])
        for n, a, b, k, d in zip(r.name, r.start_ns, r.end_ns, r.kind, r.domain, strict=True)
    }
    assert ranges["perfdoc.step 0"] == (0, 9000, RangeKind.PUSH_POP, "")
    assert ranges["named"] == (10, 20, RangeKind.PUSH_POP, "mine")
    assert ranges["crossing"] == (40, 60, RangeKind.START_END, "")
    assert ranges["here"] == (50, 50, RangeKind.MARK, "")
    # Open to the last instant of any activity or call: the device synchronisation returns at 7000.
    assert ranges["never closed"] == (30, 7000, RangeKind.PUSH_POP, "")
    assert ranges["ncclAllReduce"] == (200, 260, RangeKind.PUSH_POP, "NCCL")
    assert "open-ranges" in {n.code for n in trace.notes}

    s = trace.syncs
    syncs = {SyncKind(k): (int(st), int(p)) for k, st, p in zip(s.kind, s.stream, s.process, strict=True)}
    assert syncs == {
        SyncKind.STREAM_WAIT_EVENT: (7, 101),
        SyncKind.STREAM_SYNCHRONIZE: (7, 101),
        SyncKind.DEVICE_SYNCHRONIZE: (-1, 101),
    }
    e = trace.event_records
    assert (e.stream.tolist(), e.process.tolist()) == ([20], [101])
    wait = int(np.flatnonzero(s.kind == SyncKind.STREAM_WAIT_EVENT)[0])
    assert e.event[0] == s.event[wait] >= 0
    assert e.event_sync[0] == s.event_sync[wait]
    assert trace.utc_origin_ns == 1_700_000_000_000_000_123
    assert set(trace.capabilities) == set(CAPABILITIES)
    for name in (
        "kernels",
        "copies",
        "api_calls",
        "launch_correlation",
        "ranges",
        "event_edges",
        "utc_clock",
    ):
        assert trace.capabilities[name].available, name


@pytest.mark.parametrize("text", ["inline", "interned"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_sqlite_of_every_generation(tmp_path: Path, generation: str, text: str) -> None:
    graph = has(generation, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    path = write_nsys_sqlite(
        planted(graph=graph), tmp_path / "x.sqlite", generation=generation, options=ExportOptions(text=text)
    )
    trace = read_nsys_sqlite(path)
    assert trace.format == "nsys-sqlite"
    check(trace, generation)


@pytest.mark.parametrize("generation", ["2024.2", "2026.3"])
def test_parquet(tmp_path: Path, generation: str) -> None:
    options = ExportOptions(payloads="json" if generation == "2026.3" else "none")
    folder = write_nsys_parquet(planted(), tmp_path / "x", generation=generation, options=options)
    trace = read_nsys_parquet(folder)
    assert trace.format == "nsys-parquet"
    check(trace, generation)


@pytest.mark.parametrize("payloads", ["json", "binary"])
def test_nccl_payloads_in_either_spelling(tmp_path: Path, payloads: str) -> None:
    options = ExportOptions(payloads=payloads)  # type: ignore[arg-type]
    trace = read_nsys_sqlite(write_nsys_sqlite(planted(), tmp_path / "x.sqlite", options=options))
    p = trace.payloads
    assert p.communicator.tolist() == [COMMUNICATOR]
    assert p.bytes.tolist() == [4096]
    assert trace.names(p.operation) == ["ncclAllReduce"]
    assert trace.names(trace.ranges.name[p.range]) == ["ncclAllReduce"]
    assert trace.capabilities["collective_payloads"].available


@pytest.mark.parametrize("parquet", [False, True])
def test_credentials_are_warned_of_and_not_repeated(tmp_path: Path, parquet: bool) -> None:
    t = TimelineBuilder()
    p = t.process()
    p.device().kernel("gemm", 0, 10)
    p.thread().range("HF_TOKEN=hf_0123456789abcdef", 0, 5, domain="d")
    options = ExportOptions(text="interned")
    if parquet:
        trace = read_nsys_parquet(write_nsys_parquet(t.build(), tmp_path / "x", options=options))
    else:
        trace = read_nsys_sqlite(write_nsys_sqlite(t.build(), tmp_path / "x.sqlite", options=options))
    (note,) = [n for n in trace.notes if n.code == "secrets"]
    assert "0123456789abcdef" not in note.message + note.remedy
    assert not [
        n
        for n in read_nsys_sqlite(write_nsys_sqlite(planted(), tmp_path / "y.sqlite")).notes
        if n.code == "secrets"
    ]


def test_hostile_payload_texts_are_ignored(tmp_path: Path) -> None:
    path = write_nsys_sqlite(planted(), tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        texts = [
            "[" * 100_000,
            "{}",
            '{"NCCL communicator ID": -1}',
            '{"NCCL communicator ID": 1e400}',
            "nope",
        ]
        for text in texts:
            db.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, jsonText)"
                " VALUES (1, 2, 59, 'x', (SELECT max(globalTid) FROM NVTX_EVENTS), 0, ?)",
                (text,),
            )
    db.close()
    assert read_nsys_sqlite(path).payloads.communicator.tolist() == [COMMUNICATOR]


def test_names_that_are_not_utf8_or_missing(tmp_path: Path) -> None:
    path = write_nsys_sqlite(planted(), tmp_path / "x.sqlite", options=ExportOptions(text="inline"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'66ff6f' AS TEXT) WHERE text = 'perfdoc.step 0'")
        db.execute("DELETE FROM StringIds WHERE value = 'gemm'")
    db.close()
    trace = read_nsys_sqlite(path)
    assert "f\ufffdo" in trace.names(trace.ranges.name)
    assert any("missing in StringIds" in n for n in trace.names(trace.kernels.name))
    assert "missing-names" in {n.code for n in trace.notes}


@pytest.mark.parametrize("normalized", [False, True])
def test_times_that_were_exported_as_utc_are_utc(tmp_path: Path, normalized: bool) -> None:
    """`nsys export --ts-normalize=true` adds the session's start to every time."""
    session = 1_700_000_000_000_000_123
    t = TimelineBuilder(utc_origin_ns=session)
    process = t.process()
    process.device().kernel("gemm", 1000 + session * normalized, 2000 + session * normalized)
    process.thread().api("cudaFree", session, session + 9)  # one row is damaged
    trace = read_nsys_sqlite(write_nsys_sqlite(t.build(), tmp_path / "x.sqlite"))
    assert trace.utc_origin_ns is not None
    assert (trace.kernels.start_ns + trace.utc_origin_ns).tolist() == [session + 1000]


@pytest.mark.parametrize("lost", ["short", "full", "both"])
def test_a_kernel_is_known_by_the_name_that_is_there(tmp_path: Path, lost: str) -> None:
    """Of the fuzzer: where the full name was lost, a collective was computing."""
    short, full = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_AllGather_RING_LL(x<4096ul>)"
    t = TimelineBuilder()
    t.process().device().kernel(short, 0, 100, full_name=full)
    path = write_nsys_sqlite(t.build(), tmp_path / "x.sqlite")
    gone = {"short": [short], "full": [full], "both": [short, full]}[lost]
    with sqlite3.connect(path) as db:
        db.executemany("DELETE FROM StringIds WHERE value = ?", [(text,) for text in gone])
    db.close()
    trace = read_nsys_sqlite(path)
    names = trace.names(trace.kernels.name) + trace.names(trace.kernels.full_name)
    kept = {"short": full, "full": short}.get(lost)
    assert names == [kept, kept] if kept else all("missing in StringIds" in name for name in names)
    assert classify_kernels(trace).is_communication.tolist() == [kept is not None]
    assert "missing-names" in {n.code for n in trace.notes}


def test_the_real_payloads_are_read(shared_traces: Path) -> None:
    trace = read_nsys_sqlite(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite")
    p = trace.payloads
    assert len(p) == 466
    names, counts = np.unique(trace.names(p.operation), return_counts=True)
    operations = dict(zip(names.tolist(), counts.tolist(), strict=True))
    assert (operations["ncclAllReduce"], operations["ncclBroadcast"]) == (238, 222)
    assert set(p.communicator.tolist()) == {COMMUNICATOR}


def test_calls_of_threads_are_the_rows_on_them_in_the_order_of_the_file(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    device = process.device()
    device.kernel("k", 0, 10, stream=7)
    threads = [process.thread() for _ in range(3)]
    chance = random.Random(3)
    for i in range(60):
        chance.choice(threads).api("cudaLaunchKernel", 100 * i, 100 * i + 50)
    trace = trace_of(builder, tmp_path)
    of_row = trace.api_calls.thread
    count = len(trace.threads)
    assert count >= 3
    for chosen in ([0], [2, 1], [1, 1, -1], [0, 1, 2], [-1], []):
        wanted = [row for row in range(len(of_row)) if int(of_row[row]) in set(chosen) - {-1}]
        assert trace.calls_of(np.array(chosen, np.int64)).tolist() == wanted


def test_the_rows_of_each_device_and_process_lie_together_in_the_order_of_the_file(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    processes = [builder.process(pid=pid) for pid in (7, 5)]
    threads = [[process.thread() for _ in range(2)] for process in processes]
    devices = [process.device(ordinal=i) for i, process in enumerate(processes)]
    for i in range(12):  # in turn, and on the threads of each in turn
        launch = (threads[i % 2][i // 2 % 2], 100 * i, 100 * i + 5)
        devices[i % 2].kernel(f"k{i}", 100 * i + 10, 100 * i + 20, launch=launch)
    read = trace_of(builder, tmp_path)
    found = read.together()
    in_turn = read.kernels.device.tolist()
    assert in_turn != sorted(in_turn)
    assert found.kernels.device.tolist() == [0] * 6 + [1] * 6
    names = read.names(read.kernels.name)
    assert found.names(found.kernels.name) == [
        name for device in (0, 1) for name, of in zip(names, in_turn, strict=True) if of == device
    ]
    process = [read.threads[i].process for i in read.api_calls.thread]
    starts = zip(process, read.api_calls.start_ns.tolist(), strict=True)
    assert found.api_calls.start_ns.tolist() == [start for _, start in sorted(starts, key=lambda s: -s[0])]
    assert [found.threads[i].process for i in found.api_calls.thread] == [7] * 6 + [5] * 6
    again = found.together()
    assert again.kernels is found.kernels
    assert again.api_calls is found.api_calls


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([], "CUDA was not traced"),
        (["cudaProfilerStart"], "none of its 1 CUDA"),
        (["cuLaunchKernel"], "lost"),
        (["cudaMemcpyAsync", "cudaLaunchHostFunc_v10000"], "none of its 2 CUDA"),
        (["cudaStreamBeginCapture", "cudaLaunchKernel"], "none of its 2 CUDA"),
        (["cudaStreamBeginCapture", "cudaLaunchKernel", "cudaGraphLaunch"], r"launch some \(1\): .* lost"),
    ],
)
def test_what_lacks_kernels_is_told_by_its_calls(calls: list[str], said: str, tmp_path: Path) -> None:
    builder = TimelineBuilder()
    thread = builder.process().thread()
    thread.range("train", 0, 100)
    for call in calls:
        thread.api(call, 10, 20)
    with pytest.raises(TraceError, match=said):
        read_nsys_sqlite(write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite"))


@pytest.mark.parametrize(("kind", "told"), [(11, True), (12, True), (1, False)])
def test_pages_that_move_on_demand_are_told(kind: int, told: bool, tmp_path: Path) -> None:
    """40 of 1,000 us in which a kernel ran: two copies of 64 MiB, of managed memory or not."""
    builder = TimelineBuilder()
    device = builder.process().device()
    device.kernel("gather", 0, 1_000_000)
    for at in (100_000, 500_000):
        device.copy("host_to_device", 64 << 20, at, at + 20_000, stream=9)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = ?", (kind,))
    db.close()
    found = [n.message for n in read_nsys_sqlite(path).notes if n.code == PAGES]
    assert bool(found) == told
    assert all("2 times, 128 MiB" in message for message in found)


@pytest.mark.parametrize(("causes", "told"), [((0, 0), 0), ((1, 1), 0), ((1, 2), 1), ((2, 2), 2)])
def test_pages_that_a_program_prefetches_are_not(causes: tuple[int, int], told: int, tmp_path: Path) -> None:
    """As above, prefetched. Causes as CUPTI has them: 1 the program itself, 2 a page that is not there."""
    builder, thread, device = one_gpu()
    device.kernel("gather", 0, 1_000_000)
    for at in (100_000, 500_000):
        launch = (thread, at - 20, at - 10, "cudaMemPrefetchAsync")
        device.copy("host_to_device", 64 << 20, at, at + 20_000, stream=9, launch=launch)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        table = "CUPTI_ACTIVITY_KIND_MEMCPY"
        for at, cause in zip((100_000, 500_000), causes, strict=True):
            db.execute(f"UPDATE {table} SET copyKind = 11, migrationCause = ? WHERE start = ?", (cause, at))
    db.close()
    found = [n.message for n in read_nsys_sqlite(path).notes if n.code == PAGES]
    assert bool(found) == bool(told)
    assert all(f"moved {told} times" in message for message in found)
