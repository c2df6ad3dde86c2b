"""A table of real kernel names, and the names that only look like something else.

The table's spellings come from the traces beside the repository, from the libraries' sources and from
published profiles; arguments are shortened to x and y.
"""

from __future__ import annotations

import csv
import re
from dataclasses import astuple
from pathlib import Path

import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass, classify

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


def test_no_field_carries_nccl_algorithm_or_protocol() -> None:
    # One NCCL kernel runs several algorithms and protocols, so a name that says RING_LL proves neither.
    forbidden = {"ring", "tree", "ll", "ll128", "simple", "nvls", "collnet", "pat"}
    seen = 0
    for row in NAMES:
        fields = [str(value) for value in astuple(classify(row["name"], row["name"]))]
        words = set(re.split(r"[^a-z0-9]+", " ".join(fields).lower().replace("_", " ")))
        assert not words & forbidden, row["name"]
        seen += bool(re.search(r"RING|TREE|_LL|SIMPLE|COLLNET", row["name"]))
    assert seen >= 15


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
