"""The PyTorch profiler reader on planted files, whose answers are worked out beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import CAPABILITIES, CopyKind, RangeKind, SyncKind, Trace

PLANTED = """
{ "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "Some GPU", "totalGlobalMem": 1000, "numSms": 10},
    {"id": 3, "name": "NVIDIA H100", "totalGlobalMem": 85899345920, "numSms": 132}],
  "distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 16, "pg_count": 2, "pg_config": [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]},
    {"pg_name": "7", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[4, 5, ..., 7]"}]},
  "displayTimeUnit": "ns", "baseTimeNanoseconds": 1711964646000000000,
  "traceEvents": [
  {"name": "thread_name", "ph": "M", "ts": 1.000, "pid": 100, "tid": 101,
   "args": {"name": "thread 101 (main) "}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 100, "tid": 101, "ts": 10.000,
   "dur": 90.500},
  {"ph": "i", "cat": "user_annotation", "s": "t", "name": "checkpoint", "pid": 100, "tid": 102, "ts": 11.001},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 101, "ts": 12.000},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 100, "tid": 101, "ts": 12.000, "dur": 5.250,
   "args": {"External id": 1, "Input Dims": [[8, 8]]}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 101, "ts": 13.000,
   "dur": 2.000,
   "args": {"cbid": 211, "correlation": 41}},
  {"ph": "s", "id": 41, "pid": 100, "tid": 101, "ts": 13.000, "cat": "ac2g", "name": "ac2g"},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 100, "tid": 102, "ts": 16.000,
   "dur": 1.000,
   "args": {"cbid": 652, "correlation": 42}},
  {"ph": "X", "cat": "kernel", "name": "void ns::gemm<float>(float*)", "pid": 3, "tid": 7, "ts": 20.001,
   "dur": 9.999,
   "args": {"queued": 0, "device": 3, "context": 1, "stream": 7, "correlation": 41, "grid": [4, 3, 2],
            "block": [128, 2, 1], "graph id": 0, "graph node id": 0, "est. achieved occupancy %": 25}},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(A)", "pid": 3, "tid": 20,
   "ts": 30.000, "dur": 0.000,
   "args": {"device": 3, "stream": 20, "correlation": 42, "grid": [8, 1, 1], "block": [512, 1, 1],
            "graph id": 2, "graph node id": 17, "Collective name": "allreduce", "In msg nelems": 1000,
            "Out msg nelems": 1000, "Group size": 4, "dtype": "BFloat16", "In split size": "[]",
            "Process Group Name": "9", "Process Group Description": "undefined",
            "Process Group Ranks": "[4, 5, 6, 7]", "Seq": 12, "Comms Id": 77}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 3, "tid": 99,
   "ts": 31.000, "dur": 1.000, "args": {"device": 3, "stream": 7, "correlation": 43, "bytes": 4096}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "pid": 0, "tid": 7,
   "ts": 32.000, "dur": 1.000, "args": {"fromDevice": 2, "inDevice": 3, "toDevice": 1, "stream": 7,
    "bytes": 5}},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 3, "tid": 7, "ts": 33.000, "dur": 1.000,
   "args": {"device": 3, "stream": 7, "correlation": 44, "bytes": 512}},
  {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 3, "tid": 20, "ts": 34.000,
   "dur": 1.000,
   "args": {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": 7,
    "wait_on_cuda_event_record_corr_id": 40,
            "wait_on_cuda_event_id": 9, "stream": 20, "correlation": 45, "device": 3, "context": 1}},
  {"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 3, "tid": 1, "ts": 35.000, "dur": 1.000,
   "args": {"cuda_sync_kind": "Context Sync", "stream": 4294967295, "correlation": 46, "device": 3}},
  {"ph": "X", "cat": "cuda_event", "name": "cudaEvent", "pid": 3, "tid": 7, "ts": 29.500, "dur": 0.001,
   "args": {"event_id": 9, "stream": 7, "correlation": 40, "device": 3, "context": 1}},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 3, "tid": 7, "ts": 20.000,
   "dur": 20.000},
  {"ph": "X", "cat": "python_function", "name": "train.py(1): step", "pid": 100, "tid": 101, "ts": 9.0,
   "dur": 1.0},
  {"ph": "X", "cat": "hpu_op", "name": "odd", "pid": 3, "tid": 1, "ts": 9.0, "dur": 1.0,
   "args": {"stream": 1}},
  {"ph": "X", "cat": "odd_host", "name": "odd", "pid": 3, "tid": 1, "ts": 9.0, "dur": 1.0},
  17,
  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 200.000}
  ]
}
"""


def planted(tmp_path: Path, text: str = PLANTED, name: str = "planted.json") -> Trace:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_kineto(path)


def test_kernels_copies_and_launches(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    kernels = trace.kernels
    assert kernels.start_ns.tolist() == [20_001, 30_000]
    assert kernels.end_ns.tolist() == [30_000, 30_000]
    assert trace.names(kernels.name) == ["gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"]
    assert trace.names(kernels.full_name)[0] == "void ns::gemm<float>(float*)"
    assert kernels.device.tolist() == [0, 0]
    assert kernels.stream.tolist() == [7, 20]
    assert kernels.correlation.tolist() == [41, 42]
    assert kernels.grid_blocks.tolist() == [4 * 3 * 2, 8]
    assert kernels.block_threads.tolist() == [256, 512]
    assert kernels.graph_node.tolist() == [-1, 17]
    assert trace.copies.kind.tolist() == [CopyKind.HOST_TO_DEVICE, CopyKind.PEER_TO_PEER, CopyKind.MEMSET]
    assert trace.copies.bytes.tolist() == [4096, 5, 512]
    assert trace.copies.correlation.tolist() == [43, -1, 44]
    assert trace.copies.device.tolist() == [0, 0, 0]  # inDevice goes before pid, stream before tid
    assert trace.copies.stream.tolist() == [7, 7, 7]
    calls = trace.api_calls
    assert trace.names(calls.name) == ["cudaLaunchKernel", "cuLaunchKernelEx"]
    assert calls.correlation.tolist() == [41, 42]
    assert [trace.threads[i].tid for i in calls.thread.tolist()] == [101, 102]
    assert trace.threads[calls.thread[0]].name == "thread 101 (main)"


def test_device_rank_and_clock(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    (device,) = trace.devices
    assert (device.process, device.ordinal, device.gpu_name) == (100, 3, "NVIDIA H100")
    assert (device.sm_count, device.memory_bytes) == (132, 85899345920)
    assert (device.rank, device.rank_evidence, trace.world_size) == (5, "distributedInfo", 16)
    assert trace.utc_origin_ns == 1711964646000000000
    assert (trace.format, trace.schema) == ("kineto", "1")
    assert [(g.name, g.description, g.ranks) for g in trace.groups] == [
        ("0", "default_pg", (0, 1)),
        ("7", "TENSOR_MODEL_PARALLEL_GROUP", ()),  # PyTorch shortened the list, so it is unknown
        ("9", "undefined", (4, 5, 6, 7)),  # not in pg_config, described by the kernel
    ]


def test_ranges_operators_and_syncs(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    assert trace.names(trace.ranges.name) == ["ProfilerStep#3", "checkpoint"]
    assert trace.ranges.kind.tolist() == [RangeKind.PUSH_POP, RangeKind.MARK]
    assert trace.ranges.start_ns.tolist() == [10_000, 11_001]
    assert trace.ranges.end_ns.tolist() == [100_500, 11_001]
    assert trace.names(trace.operators.name) == ["aten::mm"]
    assert trace.operators.end_ns.tolist() == [17_250]
    syncs = trace.syncs
    assert syncs.kind.tolist() == [SyncKind.STREAM_WAIT_EVENT, SyncKind.DEVICE_SYNCHRONIZE]
    assert syncs.stream.tolist() == [20, -1]
    assert syncs.source_stream.tolist() == [7, -1]
    assert syncs.source_correlation.tolist() == [40, -1]
    assert syncs.event.tolist() == [9, -1]
    assert syncs.process.tolist() == [100, 100]
    records = trace.event_records
    assert (records.event.tolist(), records.stream.tolist()) == ([9], [7])
    assert (records.correlation.tolist(), records.time_ns.tolist()) == ([40], [29_500])


def test_payload_of_a_collective(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    payloads = trace.payloads
    assert payloads.kernel.tolist() == [1]
    assert payloads.range.tolist() == [-1]
    assert trace.names(payloads.operation) == ["allreduce"]
    assert payloads.bytes.tolist() == [2000]
    assert (trace.names(payloads.group_name), trace.names(payloads.group_description)) == (
        ["9"],
        ["undefined"],
    )
    assert (payloads.group_size.tolist(), payloads.sequence.tolist()) == ([4], [12])
    assert payloads.communicator.tolist() == [0]  # Comms Id differs from call to call


def test_capabilities_and_notes(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    # What a thread did, only the operating system knows.
    assert {n for n in CAPABILITIES if not trace.capabilities[n].available} == {"thread_states"}
    notes = {note.code: note.message for note in trace.notes}
    assert set(notes) == {"ignored-events", "unknown-device-rows", "unknown-categories"}
    assert "'hpu_op' (1)" in notes["unknown-device-rows"]
    assert "'odd_host' (1)" in notes["unknown-categories"]
    empty = planted(tmp_path, '{"traceEvents": []}')
    assert len(empty.kernels) == 0
    missing = {n for n in CAPABILITIES if not empty.capabilities[n].available}
    assert missing == set(CAPABILITIES) - {"graph_nodes"}
    assert all(empty.capabilities[n].reason and empty.capabilities[n].remedy for n in missing)


OLD = """[
{"ph": "X", "cat": "Operator", "name": "ProfilerStep#5", "pid": 9, "tid": "140", "ts": 1606911006433120,
   "dur": 50,
 "args": {"Device": 0}},
{"ph": "X", "cat": "Operator", "name": "enumerate(DataLoader)#_Iter.__next__", "pid": 9, "tid": "140",
 "ts": 1606911006433121, "dur": 5},
{"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 9, "tid": "140", "ts": 1606911006433127, "dur": 5},
{"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "140", "ts": 1606911006433128,
   "dur": 1,
 "args": {"cbid": 211, "correlation": 6}},
{"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 1606911006433130, "dur": 4,
 "args": {"device": 0, "correlation": 6, "external id": 0}},
{"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": "stream 8",
 "ts": 1606911006433134, "dur": 0, "args": {"bytes": 8, "memory bandwidth (GB/s)": inf}},
{"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7",
   "ts": 1606911006433135, "dur": 1}
]"""


def test_old_category_names_bare_list_epoch_times_and_inf(tmp_path: Path) -> None:
    trace = planted(tmp_path, OLD)
    assert trace.kernels.start_ns.tolist() == [1606911006433130000]
    assert trace.kernels.end_ns.tolist() == [1606911006433134000]
    assert trace.kernels.stream.tolist() == [7]
    assert trace.copies.stream.tolist() == [8, 7]
    assert trace.copies.kind.tolist() == [CopyKind.DEVICE_TO_HOST, CopyKind.MEMSET]
    assert trace.copies.bytes.tolist() == [8, -1]
    assert trace.utc_origin_ns == 0
    assert (trace.devices[0].process, trace.devices[0].rank, trace.schema) == (9, None, None)
    assert trace.threads[0].tid == 140
    assert len(trace.operators) == 3
    assert trace.names(trace.ranges.name) == ["ProfilerStep#5", "enumerate(DataLoader)#_Iter.__next__"]
    assert [note.code for note in trace.notes] == ["json-repaired"]


def test_relative_times_without_a_base_have_no_utc(tmp_path: Path) -> None:
    kernel = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%s,"dur":1}'
    assert planted(tmp_path, f'{{"traceEvents":[{kernel % 5}]}}').utc_origin_ns is None
    # Of times since 1970 one event is damaged.
    many = ",".join(kernel % (1711964646000000 + i) for i in range(9))
    operator = '{"ph":"X","cat":"cpu_op","name":"k","pid":1,"tid":7,"ts":1,"dur":1}'
    assert planted(tmp_path, f'{{"traceEvents":[{operator},{many}]}}').utc_origin_ns == 0
    both = planted(
        tmp_path,
        f'{{"baseTimeNanoseconds": 1711964646000000000, "traceEvents":[{kernel % 1711964646000001}]}}',
    )
    assert both.utc_origin_ns is None
    assert "clock-origin-unclear" in {note.code for note in both.notes}


def launch(pid: int, correlation: int) -> str:
    return (
        f'{{"ph":"X","cat":"cuda_runtime","name":"l","pid":{pid},"tid":1,"ts":1,"dur":1,'
        f'"args":{{"correlation":{correlation}}}}}'
    )


def kernel_row(gpu: int, correlation: int) -> str:
    return (
        f'{{"ph":"X","cat":"kernel","name":"k","pid":{gpu},"tid":7,"ts":5,"dur":1,'
        f'"args":{{"device":{gpu},"stream":7,"correlation":{correlation}}}}}'
    )


def test_several_processes_are_told_apart_by_correlation(tmp_path: Path) -> None:
    # Process 1 alone launches to GPU 0 (its unmatched kernel 99 too); both launch to GPU 1, where
    # correlation 5 is in both processes and so belongs to neither.
    events = [launch(1, 4), launch(1, 5), launch(2, 5), launch(2, 6), launch(1, 7)]
    events += [kernel_row(0, 4), kernel_row(0, 99), kernel_row(1, 6), kernel_row(1, 7), kernel_row(1, 5)]
    trace = planted(tmp_path, f'{{"distributedInfo":{{"rank":3}},"traceEvents":[{",".join(events)}]}}')
    owners = [(trace.devices[i].process, trace.devices[i].ordinal) for i in trace.kernels.device.tolist()]
    assert owners == [(1, 0), (1, 0), (2, 1), (1, 1), (-1, 1)]
    assert {device.rank for device in trace.devices} == {None}
    assert {"several-processes", "kernels-without-launch"} <= {note.code for note in trace.notes}


def test_groups_in_their_older_text_form(tmp_path: Path) -> None:
    config = r'"[{\"pg_name\": \"3\", \"pg_desc\": \"TP\", \"ranks\": [0, 8]}]"'
    trace = planted(tmp_path, f'{{"distributedInfo":{{"rank":"2","pg_config":{config}}},"traceEvents":[]}}')
    assert [(g.name, g.description, g.ranks) for g in trace.groups] == [("3", "TP", (0, 8))]


def test_what_is_recorded_besides_the_activity(tmp_path: Path) -> None:
    """Python's calls, shapes and allocations are each in the planted file once."""
    assert [words.rpartition("(")[2] for words in planted(tmp_path).recorded] == [
        *("with_stack)", "record_shapes)", "profile_memory)")
    ]
    bare = PLANTED.replace("python_function", "hpu_op").replace("Input Dims", "x").replace("[memory]", "y")
    assert list(planted(tmp_path, bare, "bare.json").recorded) == []


@pytest.mark.parametrize(
    ("listed", "name", "remedy"),
    [
        # ROCm counts the devices of rows otherwise than those that it describes.
        ('"deviceProperties": [{"id": 0, "name": "MI300X"}],', "MI300X", ""),
        ('"deviceProperties": [{"id": 0, "name": "MI300X"}, {"id": 1, "name": "MI300X"}],', "MI300X", ""),
        ('"deviceProperties": [{"id": 0, "name": "MI300X"}, {"id": 1, "name": "MI210"}],', None, ""),
        ('"deviceProperties": [],', None, ""),
        # PyTorch 1.8, as the first traces of Kineto's TensorBoard plugin have it.
        ('"computeProperties": [{"id": 9, "name": "T4", "multiProcessorCount": 40}],', "T4", ""),
        ("", None, "Keep the keys of the exported file when post-processing it"),
    ],
)
def test_a_gpu_that_is_counted_otherwise(tmp_path: Path, listed: str, name: str | None, remedy: str) -> None:
    events = ",".join((launch(7, 1), kernel_row(9, 1)))
    trace = planted(tmp_path, f'{{{listed} "schemaVersion": 1, "traceEvents": [{events}]}}')
    assert [(d.ordinal, d.gpu_name) for d in trace.devices] == [(9, name)]
    assert (trace.devices[0].sm_count == 40) == (name == "T4")
    known = trace.capabilities["gpu_identity"]
    assert (known.available, known.remedy.partition(";")[0]) == (name is not None, remedy)
