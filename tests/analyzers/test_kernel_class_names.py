"""Names of kernels to classes: a table of real ones, false friends, hostile ones, and real traces."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKind, classify, classify_kernels
from perfdoc.analyzers.kernel_class.names import MAX_QUALIFIED, qualified_name
from perfdoc.traces.model import CAPABILITIES, Capability, Device, Kernels, Trace
from tests.amount import some

with (Path(__file__).parent / "kernel_names.tsv").open(newline="", encoding="utf-8") as _file:
    NAMES = list(csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE))

SHORT = re.compile(r"(\w+)(?:<[^(]*>)?\(")


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row["name"][:70])
def test_real_name(row: dict[str, str]) -> None:
    kind = classify(row["name"], row["name"])
    assert kind.kernel_class is KernelClass[row["class"]]
    assert (kind.transport, kind.collective) == (row["transport"], row["collective"])
    assert kind.element_type == row["element_type"]


def test_the_table_is_large_and_covers_every_class() -> None:
    assert len(NAMES) >= 120
    assert {row["class"] for row in NAMES} == {c.name for c in KernelClass} - {"OTHER"}


@pytest.mark.parametrize(
    "name",
    [
        "dispatch",
        "void dispatch<int>(int*)",
        "void request::dispatch_impl(deep_epoch::Queue*)",
        "void my_step::combine<float>(float*)",  # ends in "step", not in "_ep"
        "void attention::decode::combine<bf16>(x)",
        "void cdpsk::ep::DeviceScanKernel(x)",  # the namespace of a wrapped CUB
        "void combine(deep_ep::Config)",  # the namespace is in an argument, not the function's own
        "ncclify_my_tensor(float*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
        "ballReduce(int*)",
        "void block_all_reduce_sum_f32_f32_kernel<256>(float*)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Params)",
        "void cutlass::device_kernel<flash::FlashAttnFwdCombine<x>>(y)",
        # torch.compile lists the operators around a kernel, collectives among them.
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
        "triton_red_fused_all_reduce_native_layer_norm_1",
        "void at::native::vectorized_elementwise_kernel<4, ncclDevKernel_AllReduce>(x)",
        "void scatter_reduce(float*)",
    ],
)
def test_false_friends_of_communication(name: str) -> None:
    kind = classify(name, name)
    assert kind.kernel_class is not KernelClass.COMMUNICATION
    assert (kind.transport, kind.collective, kind.element_type) == ("", "", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void flash::flash_fwd_splitkv_combine_kernel<x>(y)", KernelClass.ATTENTION),
        ("void cudnn::fusion::compute_dot_do_o<true>(x)", KernelClass.ATTENTION),
        # A product fused with a collective computes for most of its time.
        ("my_gemm_allreduce(float*)", KernelClass.GEMM),
        ("void flux::gemm_rs<x>(y)", KernelClass.GEMM),
        # ... but a norm fused with one is communication: the norm is the smaller part.
        ("void tensorrt_llm::kernels::one_shot_all_reduce_norm_kernel<x>(y)", KernelClass.COMMUNICATION),
        ("void vllm::reshape_and_cache_flash_kernel<x>(y)", KernelClass.COPY),
        ("vllm_fused_moe_kernel_gptq_awq", KernelClass.GEMM),
        ("triton_poi_fused_native_layer_norm_4", KernelClass.ELEMENTWISE),
        ("void at::native::vectorized_elementwise_kernel<4, layer_norm_of_mine>(x)", KernelClass.ELEMENTWISE),
        ("lambda_kernel", KernelClass.OTHER),
        ("oneRankReduce", KernelClass.COPY),
        ("void cutlass::Kernel2<cutlass_tensorop_s1688fprop_optimized_tf32>(x)", KernelClass.CONVOLUTION),
        ("", KernelClass.OTHER),
    ],
)
def test_false_friends_among_compute(name: str, expected: KernelClass) -> None:
    assert classify(name, name).kernel_class is expected


@pytest.mark.parametrize(
    ("functor", "label"),
    [
        ("L2NormFunctor<float>", "optimizer_clip_grad"),
        ("at::native::LpNormFunctor<float>", "optimizer_clip_grad"),
        ("AdamFunctorMaster<float>", "optimizer_update"),
        ("at::native::FusedSgdMathFunctor<float>", "optimizer_update"),
        ("ScaleFunctor<float, float>", "optimizer_scale"),
        ("at::native::PointwiseOpScalarListFunctor<float, 3, 3, 0>", "optimizer_foreach"),
    ],
)
def test_the_label_tells_clipping_from_the_update(functor: str, label: str) -> None:
    full = f"void multi_tensor_apply_kernel<TensorListMetadata<2>, {functor}, float>(x)"
    kind = classify("multi_tensor_apply_kernel", full)
    assert (kind.kernel_class, kind.label) == (KernelClass.OPTIMIZER, label)


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row["name"][:70])
def test_a_name_in_any_compiler_spelling_is_the_same_kind(row: dict[str, str]) -> None:
    # Nsight prints <unnamed> and casts in front of template values, Kineto neither.
    full = row["name"]
    expected = classify(full, full)
    other = full.replace("(anonymous namespace)", "<unnamed>")
    assert classify(other, other) == expected
    short = SHORT.search(full)
    if short is not None and full.startswith(("nccl", "void deep_ep")):
        assert classify(short.group(1), full) == expected


def test_deepep_is_known_by_its_namespace_only() -> None:
    # Nsight's short name is the bare word in both cases.
    theirs = classify("dispatch", "void deep_ep::intranode::dispatch<(int)8, (int)768>(int4 *)")
    assert (theirs.transport, theirs.collective) == ("deepep", "dispatch")
    assert (
        classify("dispatch", "void mine::dispatch<(int)8, (int)768>(int4 *)").kernel_class
        is KernelClass.OTHER
    )


@pytest.mark.parametrize(
    "unit", ["a", "<", "(", ")<", "::", "_t", "all_reduce_", "multimem_", "gemm_", "9", "\x00"]
)
@pytest.mark.parametrize("prefix", ["", "triton_poi_fused", "void deep_ep::", "_Z", "ncclKernel_AllReduce_A"])
def test_a_hostile_name_takes_no_time(prefix: str, unit: str) -> None:
    name = prefix + unit * (100_000 // len(unit)) + "!"
    begun = time.process_time()
    classify(name, name)
    # A few milliseconds; a pattern that backtracks takes hours.
    assert time.process_time() - begun < 0.5
    assert len(qualified_name(name, name)) <= MAX_QUALIFIED


def test_a_long_name_keeps_both_ends() -> None:
    # ROCm 7.1 writes every parameter of a GEMM into its name: 818 characters, the library's prefix first.
    rocm = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x224x64_MI16x16x1_" + "SN_LDSB0_AFC1_" * 53
    assert len(rocm) > 800
    assert classify(rocm, rocm).kernel_class is KernelClass.GEMM
    longer = "Cijk_" + "x" * 3000 + "_layer_norm"
    assert qualified_name(longer, longer).startswith("Cijk_x")
    assert qualified_name(longer, longer).endswith("x_layer_norm")


def test_what_lies_beyond_the_bound_is_not_read() -> None:
    hidden = "x" * 5000 + "_layer_norm"
    assert classify(hidden, hidden).kernel_class is KernelClass.OTHER
    near = "void cutlass::device_kernel<" + "x" * 3000 + "fmha>(y)"
    far = "void cutlass::device_kernel<" + "x" * 5000 + "fmha>(y)"
    assert classify("device_kernel", near).kernel_class is KernelClass.ATTENTION
    assert classify("device_kernel", far).kernel_class is KernelClass.GEMM


FRAGMENTS = st.sampled_from(
    [
        *("nccl", "DevKernel_", "deep_ep::", "dispatch", "<", ">", "(", ")", "::", "void ", "_Z3", "gemm"),
        "triton_",
    ]
)


@given(st.lists(st.one_of(FRAGMENTS, st.text(max_size=8)), max_size=12), st.text(max_size=20))
def test_any_text_has_one_kind(parts: list[str], short: str) -> None:
    full = "".join(parts)
    kind = classify(short, full)
    assert kind == classify(short, full)
    assert isinstance(kind.kernel_class, KernelClass)
    assert bool(kind.transport) == (kind.kernel_class is KernelClass.COMMUNICATION)
    assert kind.label


def planted(strings: list[str], name: list[int], full_name: list[int]) -> Trace:
    count = len(name)
    zeros = np.zeros(count, dtype=np.int64)
    return Trace(
        path=Path("planted"),
        format="kineto",
        tool_version=None,
        schema=None,
        utc_origin_ns=None,
        devices=[Device(process=1, ordinal=0)],
        threads=[],
        strings=strings,
        kernels=Kernels(
            start_ns=np.arange(count),
            end_ns=np.arange(count) + 1,
            device=zeros.astype(np.int32),
            stream=zeros,
            correlation=zeros,
            name=np.array(name, dtype=np.int32),
            full_name=np.array(full_name, dtype=np.int32),
            grid_blocks=zeros,
            block_threads=zeros,
            graph_node=zeros,
        ),
        capabilities={key: Capability(available=True) for key in CAPABILITIES},
    )


def test_classify_kernels_on_a_planted_trace() -> None:
    strings = [
        *("", "dispatch", "void deep_ep::intranode::dispatch<8>(int4 *)", "void mine::dispatch<8>(int4 *)"),
        *("ncclDevKernel_SendRecv", "ampere_sgemm_128x64_tn", "ncclDevKernel_AllGather_RING_LL"),
        "a name of no kernel",
    ]
    # Rows 4 and 5 have no full name (0), row 6 neither name (-1).
    kinds = classify_kernels(planted(strings, [1, 1, 4, 5, 6, 5, -1], [2, 3, 4, 5, 0, 0, -1]))
    assert kinds.class_code.dtype == np.int8
    assert [KernelClass(code).name for code in kinds.class_code.tolist()] == [
        "COMMUNICATION",
        "OTHER",
        "COMMUNICATION",
        "GEMM",
        "COMMUNICATION",
        "GEMM",
        "OTHER",
    ]
    assert kinds.is_communication.tolist() == [True, False, True, False, True, False, False]
    of_row = [kinds.kinds[i] for i in kinds.kind]
    assert [k.transport for k in of_row] == ["deepep", "", "nccl", "", "nccl", "", ""]
    assert [k.collective for k in of_row] == ["dispatch", "", "send_recv", "", "all_gather", "", ""]
    # Distinct kinds: dispatch, other, send_recv, gemm, all_gather.
    assert len(kinds.kinds) == len(set(kinds.kinds)) == 5


NSYS_QUERY = """
    SELECT s.value, d.value, sum(k.end - k.start)
    FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN StringIds s ON s.id = k.shortName JOIN StringIds d ON d.id = k.demangledName
    GROUP BY 1, 2
"""


def nsys_kernels(path: Path) -> Iterator[tuple[str, str, int]]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        yield from connection.execute(NSYS_QUERY)


def kineto_kernels(path: Path) -> Iterator[tuple[str, str, int]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    for event in document if isinstance(document, list) else document["traceEvents"]:
        if event.get("ph") == "X" and str(event.get("cat", "")).lower() == "kernel":
            yield event["name"], event["name"], round(float(event["dur"]) * 1000)


def time_by_kind(rows: Iterator[tuple[str, str, int]]) -> tuple[Counter[KernelKind], int]:
    """Summed kernel time by kind, and that of kernels called nccl, in ns."""
    times: Counter[KernelKind] = Counter()
    nccl_ns = 0
    for name, full_name, duration_ns in rows:
        times[classify(name, full_name)] += duration_ns
        nccl_ns += duration_ns if "nccl" in name.lower() else 0
    return times, nccl_ns


def of_class(times: Counter[KernelKind], kernel_class: KernelClass) -> int:
    return sum(ns for kind, ns in times.items() if kind.kernel_class is kernel_class)


NSYS = (
    *("cuda_graph_a100", "ddp_2gpu_rtx3090", "gpt_fwd_bwd_rtx3070ti_sched", "gpt_small_full_step_a100"),
    *("gpt_small_fwd_bwd_a100", "host_bound_2gpu_h100", "sp_2gpu_after", "sp_2gpu_before", "windows_rtx5000"),
)
STRANGERS = (
    "ddp_resnet_4gpu_rocm_one_file.json.gz",
    "ddp_resnet_mi300x_rank0of8.json.gz",
    "megatron_gpt_forward_tp8_a100/rank0.json.gz",
    "resnet50_fp32_v100.json.gz",
    "resnet_rtx2080ti_loader_workers.json.gz",
)
SHAPES = (
    "bert_small_forward_h100.json.gz",
    "normalization_layers.json.gz",
    "qwen15_05b_forward_h100.json.gz",
)
KINETO = (
    "cuda_event_sync_multi_stream.json.gz",
    "ddp_nccl_metadata_a100_rank0of2.json.gz",
    *(f"dlrm_8gpu_v100_rank{rank}.pt.trace.json.gz" for rank in range(8)),
    "dlrm_layernorm_a100_rank3of8.json.gz",
    "resnet50_num_workers_0_v100.pt.trace.json.gz",
    "resnet50_num_workers_4_v100.pt.trace.json.gz",
)


@pytest.mark.parametrize("name", some([*NSYS, *KINETO, *STRANGERS, *SHAPES], lambda n: "resnet5" not in n))
def test_real_trace_is_recognised_and_its_communication_is_nccl(shared_traces: Path, name: str) -> None:
    if name in NSYS:
        rows = nsys_kernels(shared_traces / "nsys" / f"{name}.sqlite")
    else:
        folder = "strangers" if name in STRANGERS else "shapes" if name in SHAPES else "kineto"
        rows = kineto_kernels(shared_traces / folder / name)
    times, nccl_ns = time_by_kind(rows)
    total_ns = times.total()
    assert total_ns > 0
    # Every name is known; Megatron's old kernels of torch.compile (triton__0d1d…) were 2.9 % once.
    assert of_class(times, KernelClass.OTHER) == 0
    assert of_class(times, KernelClass.COMMUNICATION) == nccl_ns


def test_real_trace_with_communication_that_is_not_called_nccl(shared_traces: Path) -> None:
    times, nccl_ns = time_by_kind(
        kineto_kernels(shared_traces / "kineto" / "vllm_moe_tp8_b200_rank0.json.gz")
    )
    by_transport: Counter[tuple[str, str]] = Counter()
    for kind, duration_ns in times.items():
        if kind.kernel_class is KernelClass.COMMUNICATION:
            by_transport[kind.transport, kind.collective] += duration_ns
    assert by_transport["nccl", "all_gather"] == nccl_ns > 0
    # 73 multimem all-reduces make 19.5 % of the kernel time, NCCL 0.2 %.
    assert by_transport["multimem", "all_reduce"] / times.total() == pytest.approx(0.195, abs=0.001)
    assert len(by_transport) == 2
    assert of_class(times, KernelClass.OTHER) <= 0.02 * times.total()
