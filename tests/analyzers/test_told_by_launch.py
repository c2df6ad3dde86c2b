"""Kernels whose names say nothing have the class of the operator that launched them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.told_by_launch import kind_of_operator, told_by_launch
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKind, classify_kernels
from perfdoc.traces.kineto.read import read_kineto

SAYS = {
    "aten::mm": KernelClass.GEMM,
    "aten::_scaled_grouped_mm": KernelClass.GEMM,
    "aten::linear": KernelClass.GEMM,
    "aten::native_layer_norm": KernelClass.NORM,
    "aten::cudnn_convolution": KernelClass.CONVOLUTION,
    "aten::mul": KernelClass.ELEMENTWISE,
    "aten::copy_": KernelClass.COPY,
    "flash_attn_3::fwd": KernelClass.ATTENTION,
    "vllm::unified_attention_with_output": KernelClass.ATTENTION,
    "_C::rms_norm": KernelClass.NORM,
    "autograd::engine::evaluate_function: LigerRMSNormFunctionBackward": KernelClass.NORM,
    "aten::mm, op_id = 12, seq = 7": KernelClass.GEMM,
    "my::mul": None,  # a word that proves nothing in a name of somebody's own
    "vllm::moe_forward": None,  # experts' products and their routing
    "Torch-Compiled Region: 0/0": None,
    "autograd::engine::evaluate_function: MulBackward0": None,
}


@pytest.mark.parametrize("name", SAYS)
def test_an_operator_tells_the_class_of_what_it_launches(name: str) -> None:
    kind = kind_of_operator(name)
    assert (kind and kind.kernel_class) == SAYS[name]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("hccl:broadcast", "broadcast"),
        ("_C_custom_ar::all_reduce", "all_reduce"),
    ],
)
def test_a_collectives_operator_makes_what_it_launches_communication(name: str, collective: str) -> None:
    kind = kind_of_operator(name)
    assert kind is not None
    assert (kind.kernel_class, kind.collective) == (KernelClass.COMMUNICATION, collective)


def kinds_of(folder: Path, *more: dict[str, object]) -> dict[str, KernelKind]:
    """A kernel of each name launched inside: nothing, a product in a layer, a collective, a product whose
    kernel has a name, and with a graph inside a product."""
    rows = list(more)
    launched = [
        ("plain", "", "cudaLaunchKernel"),
        ("main_kernel", "aten::mm", "cudaLaunchKernel"),
        ("run_17", "c10d::allreduce_", "cudaLaunchKernel"),
        ("rms_norm_kernel", "aten::mm", "cudaLaunchKernel"),
        ("inside_graph", "aten::mm", "cudaGraphLaunch"),
    ]
    for i, (kernel, operator, call) in enumerate(launched):
        at, host = 100 * i, {"ph": "X", "pid": 5, "tid": 6}
        args = {"device": 0, "stream": 7, "correlation": 9 + i}
        rows.append({**host, "cat": "cpu_op", "name": "aten::layer_norm", "ts": at + 60, "dur": 9})
        if operator:
            rows.append({**host, "cat": "cpu_op", "name": "my::layer", "ts": at, "dur": 50})
            rows.append({**host, "cat": "cpu_op", "name": operator, "ts": at + 1, "dur": 40})
        rows.append({**host, "cat": "cuda_runtime", "name": call, "ts": at + 9, "dur": 2, "args": args})
        rows.append({"ph": "X", "cat": "kernel", "name": kernel, "ts": at + 61, "dur": 5, "args": args})
    path = folder / "x.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = read_kineto(path)
    kinds = told_by_launch(trace, classify_kernels(trace), find_launches(trace))
    names = trace.names(trace.kernels.name)
    return {name: kinds.kinds[k] for name, k in zip(names, kinds.kind.tolist(), strict=True)}


def test_the_innermost_operator_at_the_launch_counts(tmp_path: Path) -> None:
    kinds = kinds_of(tmp_path)
    found = {name: kind.kernel_class for name, kind in kinds.items()}
    assert found == {
        "plain": KernelClass.OTHER,
        "main_kernel": KernelClass.GEMM,
        "run_17": KernelClass.COMMUNICATION,
        "rms_norm_kernel": KernelClass.NORM,  # its own name goes first
        "inside_graph": KernelClass.OTHER,
    }
    assert kinds["run_17"].collective == "all_reduce"
