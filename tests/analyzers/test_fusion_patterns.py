"""Planted sequences of PyTorch's arithmetic: what a fused kernel would replace, and what only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results.kernels import UnfusedPattern
from tests.analyzers.device_views import view_of
from tests.analyzers.step_plan import parts_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu

VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<(int)4, {}, std::array<char *, (unsigned long)3>>(int)"
)
STRIDED = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<{}>"
    "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
REDUCE = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::{}<float>>>(T3)"
)
LAMBDA = "at::native::{}(at::TensorIteratorBase &)::[lambda() (instance 2)]::operator ()() const"

K = {
    "mul": STRIDED.format("at::native::BinaryFunctor<float, float, float, at::native::MulFunctor<float>>"),
    "scale": VECTORIZED.format(
        "at::native::AUnaryFunctor<float, float, float, at::native::MulFunctor<float>>"
    ),
    "add": VECTORIZED.format("at::native::CUDAFunctor_add<float>"),
    "eps": VECTORIZED.format("at::native::CUDAFunctorOnSelf_add<float>"),
    "div": STRIDED.format("at::native::BinaryFunctor<float, float, float, at::native::DivFunctor<float>>"),
    "pow": VECTORIZED.format("void at::native::<unnamed>::pow_tensor_scalar_kernel_impl<float, float>(x)"),
    "mean": REDUCE.format("MeanOps"),
    "max": REDUCE.format("MaxOps"),
    "sum": REDUCE.format("func_wrapper_t<float, at::native::sum_functor<float, float, float>>, x"),
    **{
        n: VECTORIZED.format(LAMBDA.format(f"{n}_kernel_cuda"))
        for n in ("rsqrt", "exp", "log", "neg", "tanh", "sigmoid")
    },
    "cast": VECTORIZED.format(LAMBDA.format("bfloat16_copy_kernel_cuda")),
    "fill": VECTORIZED.format("at::native::FillFunctor<float>"),
    "concat": "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<4>, int>(x)",
    "masked_fill": STRIDED.format("at::native::<unnamed>::masked_fill_kernel(at::TensorIterator &)"),
    "softmax": "void <unnamed>::softmax_warp_forward<float, float, float, (int)6, (bool)0, (bool)0>(T2 *)",
    "log_softmax": "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
    "at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T2 *)",
    "nll": "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(x)",
    "silu": VECTORIZED.format(LAMBDA.format("silu_kernel")),
    "silu_grad": VECTORIZED.format(LAMBDA.format("silu_backward_kernel")),
    "gelu": VECTORIZED.format(LAMBDA.format("GeluCUDAKernelImpl")),
    "dropout": "void at::native::<unnamed>::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>(x)",
    "gemm": GEMM,
    "gather": "void at::native::vectorized_gather_kernel<16, long>(x)",
}


def lay(folder: Path, *streams: str, repeat: int = 2) -> list[UnfusedPattern]:
    """Kernels of 10, 11, 12, ... ns each in turn, on a stream for each text, `repeat` times over."""
    builder = TimelineBuilder()
    device = builder.process().device()
    for number, words in enumerate(streams):
        at, length = 1_000 + number, 10
        for word in words.split() * repeat:
            device.kernel(word, at, at + length, stream=7 + number, full_name=K[word])
            at, length = at + 100, length + 1
    return list(parts_of(view_of(builder, folder)).unfused)


@pytest.mark.parametrize(
    ("words", "pattern", "knob"),
    [
        ("pow mean eps rsqrt mul mul gemm", "rms_norm_by_hand", None),
        ("cast pow mean eps rsqrt mul cast mul gemm", "rms_norm_by_hand", None),
        ("gemm scale masked_fill softmax gemm", "masked_softmax", "masked_softmax_fusion"),
        ("gemm max add exp sum div gemm", "masked_softmax", "masked_softmax_fusion"),
        ("gemm silu mul gemm", "swiglu", "bias_activation_fusion"),
        ("gemm mul mul silu_grad gemm", "swiglu", "bias_activation_fusion"),
        ("gemm add gelu gemm", "bias_gelu", "bias_activation_fusion"),
        ("gemm scale pow scale add scale tanh eps mul gemm", "bias_gelu", "bias_activation_fusion"),
        ("gemm mul neg concat mul add gemm", "rotary_embedding", "apply_rope_fusion"),
        ("gemm add dropout add gemm", "bias_dropout_add", "bias_dropout_fusion"),
        ("gemm log_softmax nll gemm", "cross_entropy", "cross_entropy_loss_fusion"),
        ("gemm max add gather add exp sum log add gemm", "cross_entropy", "cross_entropy_loss_fusion"),
    ],
)
def test_each_sequence_is_found(tmp_path: Path, words: str, pattern: str, knob: str | None) -> None:
    (found,) = lay(tmp_path, words)
    assert (found.pattern, found.knob, found.count) == (pattern, knob, 2)
    assert set(found.evidence) <= {K[w] for w in words.split()}
    assert found.kernels == 2 * len(found.evidence)
    assert (found.note != "") == (pattern in ("rms_norm_by_hand", "masked_softmax"))


def test_counts_and_times(tmp_path: Path) -> None:
    # gemm 10, cast 11, pow 12, mean 13, eps 14, rsqrt 15, cast 16, mul 17, mul 18; again from gemm 19.
    (found,) = lay(tmp_path, "gemm cast pow mean eps rsqrt cast mul mul")
    assert (found.count, found.kernels) == (2, 14)
    assert found.total_ns == sum(range(12, 19)) + sum(range(21, 28))
    assert found.stays_ns == 18 // 3 + 27 // 3  # of the longest of each
    names = ["pow", "mean", "eps", "rsqrt", "cast", "mul", "mul"]
    assert found.evidence == [K[n] for n in names]


@pytest.mark.parametrize(
    "words",
    [
        "mul mul add mul mul add",  # any number of small kernels
        "pow mean eps gemm rsqrt mul",  # something in between
        "mean eps rsqrt mul",  # no square
        "masked_fill add softmax",
        "softmax",
        "silu gemm mul",
        "sigmoid mul mul",
        "gemm gelu",  # the bias is in the product
        "neg mul concat mul add",
        "gemm dropout gemm",  # of attention
        "max add exp sum",
        "log_softmax gemm nll",
        "max add exp log",
    ],
)
def test_what_only_looks_like_one(tmp_path: Path, words: str) -> None:
    assert lay(tmp_path, "gemm " + words + " gemm") == []


def test_once_is_no_pattern(tmp_path: Path) -> None:
    assert lay(tmp_path, "gemm silu mul gemm", repeat=1) == []


def test_streams_are_apart(tmp_path: Path) -> None:
    # In time silu and mul alternate; on each stream there is one of them only.
    assert lay(tmp_path, "silu gemm", "mul gemm") == []
    # Nor does one end where the next one begins.
    assert lay(tmp_path, "gemm silu", "mul gemm silu", "mul gemm", repeat=1) == []


def test_a_sequence_on_a_second_stream(tmp_path: Path) -> None:
    # On stream 8: gemm 10, silu 11, mul 12 ns, again from gemm 13 on.
    (found,) = lay(tmp_path, "gelu gemm", "gemm silu mul", "gemm")
    assert (found.pattern, found.count, found.total_ns) == ("swiglu", 2, 11 + 12 + 14 + 15)
    assert found.evidence == [K["silu"], K["mul"]]


def test_the_accumulation_of_gradients_is_known_by_its_node(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    for i in range(3):
        at = 1_000 * i
        thread.range(
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 4", at, at + 600
        )
        thread.range("torch::autograd::AccumulateGrad, op_id = 5", at + 50, at + 550)
        device.kernel("add", at + 700, at + 720 + i, full_name=K["add"], launch=(thread, at + 100, at + 110))
        device.kernel("cast", at + 730, at + 740, full_name=K["cast"], launch=(thread, at + 200, at + 210))
        # Outside of the node.
        device.kernel("add", at + 750, at + 790, full_name=K["add"], launch=(thread, at + 650, at + 660))
    (found,) = parts_of(view_of(builder, tmp_path)).unfused
    assert (found.pattern, found.knob) == ("gradient_accumulation", "gradient_accumulation_fusion")
    assert (found.count, found.kernels, found.total_ns) == (3, 3, 20 + 21 + 22)
    assert found.evidence == [K["add"]]
