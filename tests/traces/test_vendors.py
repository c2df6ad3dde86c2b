"""What a PyTorch trace of another vendor's GPUs is told to lack: not with the switches of CUDA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import CopyKind

LAUNCHES = {
    "nvidia": "cudaLaunchKernel",
    "amd": "hipLaunchKernel",
    "amd, from C": "hipExtLaunchKernel",
    "intel": "urEnqueueKernelLaunch",
    "ascend": "aclrtLaunchKernel",
    "cambricon": "cnInvokeKernel",
    "moore threads": "musaLaunchKernel",
    "metax": "mcLaunchKernel",
    "biren": "suLaunchKernel",
}


@pytest.mark.parametrize("vendor", LAUNCHES)
def test_remedies_are_those_of_the_vendor(vendor: str, tmp_path: Path) -> None:
    common = {"ph": "X", "pid": 1, "tid": 2, "dur": 5}
    apart = {"intel": "xpu_runtime", "cambricon": "mlu_runtime", "moore threads": "musa_runtime"}
    apart["biren"] = "supa_runtime"
    category = apart.get(vendor, "cuda_runtime")
    call = {**common, "cat": category, "name": LAUNCHES[vendor], "ts": 1, "args": {"correlation": 7}}
    args = {"device": 0, "stream": 3, "correlation": 7}
    kernel = {**common, "cat": "kernel", "name": "k", "ts": 9, "args": args}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": [call, kernel]}))
    found = read_kineto(path).capabilities
    assert found["launch_correlation"].available
    said = " ".join(found[name].remedy for name in ("event_edges", "thread_states"))
    assert ("cuda" in said, "nsys" in said) == ((True, True) if vendor == "nvidia" else (False, False))


CALL = {
    "ph": "X",
    "pid": 4242,
    "tid": 4242,
    "ts": 10,
    "dur": 5,
    "cat": "cuda_runtime",
    "name": "cudaLaunchKernel",
}
KERNEL = {"ph": "X", "pid": 0, "tid": 7, "ts": 20, "dur": 90, "cat": "kernel", "name": "gemm"}


@pytest.mark.parametrize(
    ("category", "name", "pid", "args"),
    [
        ("shm_memcpy", "copy sample", 0, {"bytes": 1 << 20}),
        ("host_memcpy", "pin batch", 4242, {"bytes": 1 << 20}),
        ("host_memset", "zero pages", 0, {"device": 0}),
        ("python_runtime", "gc.collect", 4242, {}),
        ("python_runtime", "gc.collect", 4242, {"correlation": 9}),
        ("ray_runtime", "jobLaunch", 77, {}),
        ("ray_runtime", "jobLaunch", 77, {"correlation": 7}),
        ("ray_runtime", "jobLaunch", 77, {"correlation": 7, "stream": 3}),
    ],
)
def test_rows_of_other_libraries_are_not_read_for_their_names(
    category: str, name: str, pid: int, args: dict[str, int], tmp_path: Path
) -> None:
    """Beside one launch and its kernel: nothing is known of them but that they are there."""
    plain = [
        {**CALL, "args": {"correlation": 7}},
        {**KERNEL, "args": {"device": 0, "stream": 7, "correlation": 7}},
    ]
    row = {
        "ph": "X",
        "pid": pid,
        "tid": 5,
        "ts": 130,
        "dur": 900,
        "cat": category,
        "name": name,
        "args": args,
    }
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": plain}))
    (tmp_path / "y.json").write_text(json.dumps({"traceEvents": [row, *plain]}))
    without, found = (read_kineto(tmp_path / n) for n in ("x.json", "y.json"))
    assert (len(found.api_calls), len(found.kernels), len(found.copies)) == (1, 1, 0)
    assert (found.threads, found.devices, found.strings) == (
        without.threads,
        without.devices,
        without.strings,
    )
    assert found.capabilities == without.capabilities
    assert category in found.notes[-1].message


def test_copies_of_another_vendors_build_are_copies(tmp_path: Path) -> None:
    row = {**KERNEL, "cat": "supa_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"}
    (tmp_path / "x.json").write_text(
        json.dumps({"traceEvents": [{**row, "args": {"device": 0, "stream": 7}}]})
    )
    assert read_kineto(tmp_path / "x.json").copies.kind.tolist() == [CopyKind.HOST_TO_DEVICE]


@pytest.mark.parametrize(
    ("who", "name", "category", "process", "cuda"),
    [
        ("gaudi's collective", "hccl_allreduce", "kernel", "python", False),
        ("gaudi's process", "gemm", "kernel", "Gaudi 0", False),
        ("gaudi's category", "x", "hpu_op", "python", False),
        ("ascend's collective", "hcom_allReduce__905_0_1", "kernel", "python", False),
        ("ascend's operator", "aclnnMatmul", "cpu_op", "python", False),
        ("ascend's other operator", "npu::npu_fusion_attention", "cpu_op", "python", False),
        ("ascend's process", "MatMulV2", "kernel", "Ascend Hardware", False),
        ("anybody's", "gemm", "kernel", "python", True),
        ("a user's own", "Ascend the hill", "cpu_op", "python", True),
    ],
)
def test_kernels_without_calls_are_of_whom_other_names_show(
    who: str, name: str, category: str, process: str, cuda: bool, tmp_path: Path
) -> None:
    rows = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process}},
        {"ph": "X", "pid": 1, "tid": 2, "dur": 5, "cat": category, "name": name, "ts": 1, "args": {}},
        {"ph": "X", "pid": 1, "tid": 3, "dur": 5, "cat": "kernel", "name": "k", "ts": 9},
    ]
    for row in rows[1:]:
        if row["cat"] == "kernel":
            row["args"] = {"device": 0, "stream": 3}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = read_kineto(path).capabilities
    assert not found["api_calls"].available
    said = " ".join(one.remedy for one in found.values())
    assert [word in said for word in ("ProfilerActivity.CUDA", "cuda_sync", "nsys")] == [cuda] * 3


def test_gaudis_operators_are_told_by_their_category(tmp_path: Path) -> None:
    row = {"ph": "X", "cat": "hpu_op", "name": "gemm", "pid": 0, "tid": 1, "ts": 7, "dur": 3}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": [row]}))
    with pytest.raises(TraceError, match="trace of Gaudi"):
        read_kineto(path)


@pytest.mark.parametrize(
    ("processes", "who"),
    [
        (["Python", "CANN", "Ascend Hardware", "Overlap Analysis"], "Ascend"),
        (["/device:GPU:0", "/host:CPU"], "JAX"),
        (["CPU HIP API", "GPU0"], "rocprof"),
        (["AscendCL", "Task Scheduler"], "Ascend"),
        (["AI Core Op", "Overlap Analysis"], "Ascend"),
        (["/job:localhost/replica:0/task:0/device:GPU:0/stream:all Compute"], "JAX or TensorFlow"),
    ],
)
def test_what_other_profilers_write_is_refused_by_name(
    processes: list[str], who: str, tmp_path: Path
) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": i, "args": {"name": name}}
        for i, name in enumerate(processes)
    ]
    row = {"ph": "X", "name": "MatMulV2", "pid": 2, "tid": 1, "ts": "17.5", "dur": 3}
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([*events, row]))
    with pytest.raises(TraceError, match=f"trace of {who}.*does not read"):
        read_kineto(path)


@pytest.mark.parametrize(
    ("category", "call"),
    [
        ("rocm_kernel_dispatch", "rocm_hip_api"),  # rocprof-sys
        ("kernel_dispatch", "hip_api"),  # rocprofv3, by Perfetto's traceconv
        ("device_hip", "host"),  # Omnitrace
    ],
)
def test_kernels_of_amds_own_profilers_are_not_said_to_be_missing(
    category: str, call: str, tmp_path: Path
) -> None:
    common = {"ph": "X", "pid": 1234, "dur": 5}
    events = [
        {"ph": "M", "name": "process_name", "pid": 1234, "args": {"name": "python3"}},
        {**common, "cat": call, "name": "hipLaunchKernel", "tid": 1, "ts": 9, "args": {"corr_id": 3}},
        {**common, "cat": category, "name": "Cijk_Ailk_Bljk_BBS", "tid": 55, "ts": 17, "args": {}},
    ]
    path = tmp_path / "perfetto-trace-0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError, match=r"trace of rocprofv3 or rocprof-sys.*does not read"):
        read_kineto(path)


@pytest.mark.parametrize(("launch", "of_gpu"), [("hipLaunchKernel", [3, 3]), ("cudaLaunchKernel", [3])])
def test_a_copy_to_the_host_is_of_its_gpu(launch: str, of_gpu: list[int], tmp_path: Path) -> None:
    """ROCm 7 (rocprofiler-sdk) numbers it by the CPU that it goes to: 1, where the process has GPU 3."""
    rows = [{**CALL, "name": launch, "args": {"correlation": 7}}]
    for name, device in (("Memcpy HtoD (Host -> Device)", 3), ("Memcpy DtoH (Device -> Host)", 1)):
        args = {"device": device, "stream": 0, "correlation": 8, "bytes": 64}
        rows.append({**KERNEL, "cat": "gpu_memcpy", "pid": device, "name": name, "args": args})
    rows.append({**KERNEL, "pid": 3, "args": {"device": 3, "stream": 7, "correlation": 7}})
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": rows}))
    trace = read_kineto(tmp_path / "x.json")
    ordinals = [trace.devices[i].ordinal for i in trace.copies.device.tolist()]
    assert [ordinal for ordinal in ordinals if ordinal == 3] == of_gpu
