"""Attention of separate kernels, by the order of kernels on a stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.kernels import NO_UNFUSED_ATTENTION, UnfusedAttention
from tests.analyzers.tiny import GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import one_gpu
from tests.rules.laid import FLASH, MUL, SOFTMAX

US = 1_000
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, x>(y)"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::{}<float>>>(x)"
KERNELS = {
    "P": GEMM,
    "s": SOFTMAX,
    "b": SOFTMAX.replace("forward", "backward"),
    "h": "void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>(x)",
    "B": "void scaled_upper_triang_masked_softmax_warp_backward<__half, __half, float, 11>(x)",
    "m": MUL,
    "F": FLASH,
    "k": "void at::native::(anonymous namespace)::masked_fill_kernel(x)",
    "C": VECTORIZED.format("direct_copy_kernel_cuda(x)::[lambda()]"),
    "x": REDUCE.format("MaxOps"),
    "a": VECTORIZED.format("CUDAFunctor_add<float>"),
    "e": VECTORIZED.format("exp_kernel_cuda(x)::[lambda()]"),
    "S": REDUCE.format("sum_functor"),
    "d": VECTORIZED.format("BinaryFunctor<float, at::native::DivFunctor<float>>"),
    "n": VECTORIZED.format("neg_kernel_cuda(x)::[lambda()]"),
    "t": "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(x)",
    "l": "void at::native::<unnamed>::cunn_SoftMaxForward<4, at::native::LogSoftMaxForwardEpilogue>(x)",
}
"""A letter each; products take 10 us, everything else 1."""


def found_in(folder: Path, text: str, other_stream: str = "") -> UnfusedAttention:
    """Kernels in this order on one stream, and others on a second."""
    builder, thread, device = one_gpu()
    for stream, letters in ((7, text), (8, other_stream)):
        at = 0
        for letter in letters:
            name, took = KERNELS[letter], (10 if letter == "P" else 1) * US
            launch = (thread, at + stream, at + stream + 1)
            device.kernel(name.split("<")[0], at, at + took, full_name=name, stream=stream, launch=launch)
            at += took
    path = write_nsys_sqlite(builder.build(), folder / "a.sqlite", force=True)
    (rank,) = measure_capture(path, WindowRequest()).ranks
    return rank.kernel_parts.unfused_attention


def seen(
    forwards: int, backwards: int | None, between_us: int, products: int, apart_us: int
) -> UnfusedAttention:
    """apart_us: each is launched as the one before ends, so what all but the last of each pass take."""
    return UnfusedAttention(
        forwards=forwards,
        backwards=backwards,
        between_ns=between_us * US,
        products_ns=products * 10 * US,
        apart_ns=apart_us * US,
    )


BY_HAND = "xaeSd"
GRADIENT = "PPCCPPddnmdSamnSCamPPm"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Scale, mask, softmax, cast: 4 of 1 us, twice, and the projection behind is no product of it.
        ("PmksCPP" * 2, seen(2, 0, 8, 4, 2 * 14)),
        (f"Pm{BY_HAND}CPP" * 3, seen(3, 0, 21, 6, 3 * 17)),
        # A softmax that is fused with its mask alone, forward and backward.
        ("PhPP" * 2 + "PPBPP" * 2, seen(2, 2, 4, 4 + 8, 2 * 11 + 2 * 31)),
        # Behind a dropout's gradient, two products on either side of the softmax's.
        ("PsPP" * 2 + "PPCPPmbmPPC" * 2, seen(2, 2, 2 + 6, 4 + 8, 2 * 11 + 2 * 33)),
        (f"P{BY_HAND}PP" * 2 + GRADIENT * 2, seen(2, 2, 10 + 26, 4 + 8, 2 * 15 + 2 * 43)),
    ],
)
def test_what_is_between_two_products(tmp_path: Path, text: str, expected: UnfusedAttention) -> None:
    assert found_in(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "PmksCP",  # once
        "PstPP" * 4,  # a router's: top-k behind it
        "PtsPP" * 4,
        "PlPP" * 4,  # a loss
        "FsFP" * 4,
        "PmmmP" * 4,
    ],
)
def test_what_is_none(tmp_path: Path, text: str) -> None:
    assert found_in(tmp_path, text) == NO_UNFUSED_ATTENTION


def test_other_streams_and_fused_attention_do_not_matter(tmp_path: Path) -> None:
    assert found_in(tmp_path, "PsPPFP" * 2, other_stream="mmmm" * 5) == seen(2, 0, 2, 4, 2 * 11)


def test_more_gradients_than_forwards_are_not_told_apart(tmp_path: Path) -> None:
    """A layer norm by hand has gradients of the same kernels: which are attention's is not known."""
    text = f"P{BY_HAND}PP" * 2 + GRADIENT * 3
    assert found_in(tmp_path, text) == seen(2, None, 10, 4, 2 * 15)
