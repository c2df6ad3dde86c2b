"""What a PyTorch trace of another vendor's GPUs is told to lack: not with the switches of CUDA."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.kineto.read import read_kineto

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
