"""Matrix products: 2 m n k operations, and m n more where something is added to the product. Convolutions: 2
operations for every output, input channel of its group and place of the kernel; the gradient of the input and
that of the weights take as many as the forward pass each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

from perfdoc.analyzers.work.inputs import Inputs, Shape, Tensor
from perfdoc.analyzers.work.operator_work import Formula, OperatorWork, bytes_of, sized, total_bytes

_SCALAR_TYPES = MappingProxyType(
    {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 15: 2, 23: 1, 24: 1, 25: 1, 26: 1}
)
"""Bytes by c10::ScalarType, as an `out_dtype` is recorded: 5 half, 6 float, 15 bfloat16, 23 and up 8 bits."""


def product_work(
    m: int, n: int, k: int, a: Tensor, *, read: int | None, out_width: int | None, batch: int = 1, added: bool
) -> OperatorWork:
    """[batch, m, k] x [batch, k, n]; read: bytes of all inputs; added: a bias or another matrix joins."""
    outputs = batch * m * n
    return OperatorWork(
        flops=2 * outputs * k + (outputs if added else 0),
        bytes=total_bytes((read, sized(outputs, out_width))),
        dtype=a.dtype,
        kind="gemm",
    )


def _batched(
    x: Inputs, first: int, *, added: int | None = None, beta: int | None = None
) -> OperatorWork | None:
    """a [b, m, k] and b [b, k, n] at `first` and after it, or both without batch; `added` joins unless beta
    is 0."""
    a, b = x.tensor(first), x.tensor(first + 1)
    if a is None or b is None or len(a.shape) != len(b.shape) or len(a.shape) not in (2, 3):
        return None
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        return None
    other = x.tensor(added) if added is not None else None
    if added is not None and other is None:
        return None
    if beta is not None and x.number(beta) == 0:
        other = None
    # Whole numbers of 8 bits are summed in 32.
    width = 4 if a.dtype == "int8" else a.width
    return product_work(
        a.shape[-2],
        b.shape[-1],
        a.shape[-1],
        a,
        batch=math.prod(a.shape[:-2]),
        read=bytes_of(a, b, other),
        out_width=width,
        added=other is not None,
    )


def _linear(x: Inputs) -> OperatorWork | None:
    """input [..., k], weight [n, k], bias [n] or none."""
    a, w, bias = x.tensor(0), x.tensor(1), x.tensor(2)
    if a is None or w is None or not a.shape or len(w.shape) != 2 or a.shape[-1] != w.shape[1]:
        return None
    rows = math.prod(a.shape[:-1])
    read, added = bytes_of(a, w, bias), bias is not None
    return product_work(rows, w.shape[0], w.shape[1], a, read=read, out_width=a.width, added=added)


def _scaled(x: Inputs) -> OperatorWork | None:
    """_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype): 8-bit inputs and their scales."""
    a, b = x.tensor(0), x.tensor(1)
    if a is None or b is None or len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
        return None
    if a.width != 1 or a.dtype != "fp8":
        return None  # two numbers of 4 bits share a byte: the shape is not that of the product
    # Until PyTorch 2.4 the bias and the type of the output came before the scales.
    old = x.tensor(3) is None
    bias = x.tensor(2 if old else 4)
    scales = x.tensors(*((4, 5) if old else (2, 3)))
    read = bytes_of(a, b, bias, *scales)
    width = _out_width(x, 3 if old else 6, a.width)
    return product_work(
        a.shape[0], b.shape[1], a.shape[1], a, read=read, out_width=width, added=bias is not None
    )


def _out_width(x: Inputs, position: int, default: int | None) -> int | None:
    """Bytes of an element of the output, by `out_dtype`; where the scalars are unknown, so is it."""
    if not x.values:
        return None
    if not x.value(position):
        return default
    code = x.integer(position)
    return None if code is None else _SCALAR_TYPES.get(code)


def _groups(x: Inputs, *, offsets: int, out_dtype: int, default: bool) -> OperatorWork | None:
    """_grouped_mm(a, b, offs, bias, out_dtype) and _scaled_grouped_mm(a, b, scale_a, scale_b, offs, bias,
    scale_result, out_dtype): products of many experts in one kernel.

    default: whether the output is as wide as the input where no type is given. Every row belongs to some
    expert: rows beyond the last offset, which only a padded dispatch has, are counted as if multiplied.
    """
    a, b, ends = x.tensor(0), x.tensor(1), x.tensor(offsets)
    if a is None or b is None or len(a.shape) not in (2, 3) or len(b.shape) not in (2, 3):
        return None
    if a.dtype == "unknown" and a.width is not None:
        return None
    k = a.shape[-1]
    if b.shape[-2] != k:
        return None
    outputs = a.shape[-2] * b.shape[-1]
    flops = 2 * outputs * k
    if len(a.shape) == 3 and len(b.shape) == 3:
        if a.shape[0] != b.shape[0]:
            return None
        outputs, flops = a.shape[0] * outputs, a.shape[0] * flops
    elif len(a.shape) == len(b.shape):
        # The gradient of the weights: each group sums over its own part of k.
        if ends is None or len(ends.shape) != 1:
            return None
        outputs *= ends.shape[0]
    width = _out_width(x, out_dtype, a.width if default else 2)
    read = bytes_of(*(x.tensor(i) for i in range(offsets + 1)))
    return OperatorWork(
        flops=flops, bytes=total_bytes((read, sized(outputs, width))), dtype=a.dtype, kind="grouped_gemm"
    )


def _quantised(x: Inputs, first: int = 0) -> OperatorWork | None:
    """8-bit [m, k] and its weights, to 16 bits. Libraries differ in whether these are [k, n] or [n, k]."""
    found = x.tensors(first, first + 1)
    if [(len(t.shape), t.width) for t in found] != [(2, 1), (2, 1)]:
        return None
    a, b = found
    m, k = a.shape
    n = b.elements // k if k in b.shape and k else 0
    return product_work(m, n, k, a, read=bytes_of(a, b), out_width=2, added=False) if n else None


def _experts(x: Inputs) -> OperatorWork | None:
    """fused_experts(tokens [m, h], w1 [experts, i or 2 i, h], w2 [experts, h, i], weights [m, k], …). Even
    routing reaches experts x (1 - (1 - k / experts)^m) of them, whose weights are read."""
    found, rest = x.tensors(0, 1, 2, 3), x.tensors(*range(5, x.count))
    if [len(t.shape) for t in found] != [2, 3, 3, 2]:
        return None
    a, w1, w2, chosen = found
    (m, h), (experts, up, _), i, k = a.shape, w1.shape, w2.shape[2], chosen.shape[1]
    # Two weights of 4 bits share a byte. Where a map says which experts are here, most tokens go elsewhere.
    fits = w1.shape[2] == h and w2.shape[:2] == (experts, h) and up in (i, 2 * i) and chosen.shape[0] == m
    if not fits or not 0 < k <= experts or any(len(t.shape) == 1 and t.dtype == "unknown" for t in rest):
        return None
    weights = bytes_of(w1, w2)
    return OperatorWork(
        flops=2 * m * k * h * (up + i),
        bytes=total_bytes((bytes_of(a, a), weights and round(weights * (1 - (1 - k / experts) ** m)))),
        dtype=w1.dtype if w1.dtype == "fp8" else a.dtype,
        kind="grouped_gemm",
    )


def _outputs(
    x: Tensor,
    w: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *more: Sequence[int],
) -> Shape | None:
    """[N, Cout, ...]. more, of a transposed one, whose weights are [Cin, Cout over groups, ...]: padding of
    the output, and groups."""
    axes = len(x.shape) - 2
    outer, groups = more or ((0,), (1,))
    each = [tuple(v) * axes if len(v) == 1 else v for v in (padding, stride, dilation, outer)]
    if axes < 1 or len(w.shape) != len(x.shape) or any(len(v) != axes for v in (*each, tuple(groups) * axes)):
        return None
    if min(each[1]) < 1:
        return None
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + o + 1 if more else (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d, o in zip(x.shape[2:], w.shape[2:], *each, strict=True)
    ]
    channels = w.shape[1] * groups[0] if more else w.shape[0]
    return (x.shape[0], channels, *sizes) if min(sizes) >= 0 else None


def _forward(
    bias: int | None, padding: int, stride: int, dilation: int, transposed: int | None = None, *more: int
) -> Formula:
    """x at 0 and weights at 1; where the other inputs stand. more: of what can be transposed (always, where
    there is no flag) the padding of its output, and its groups."""

    def work(x: Inputs) -> OperatorWork | None:
        given, w = x.tensor(0), x.tensor(1)
        spreads = bool(more) if transposed is None else x.flag(transposed)
        settings = [x.integers(i) for i in (padding, stride, dilation, *(more if spreads else ()))]
        if given is None or w is None or spreads is None or any(s is None for s in settings):
            return None
        out = _outputs(given, w, *(s for s in settings if s is not None))
        if out is None:
            return None
        added = x.tensor(bias) if bias is not None else None
        elements = math.prod(out)
        products = (given.elements if spreads else elements) * math.prod(w.shape[1:])
        return OperatorWork(
            flops=2 * products + (elements if added is not None else 0),
            bytes=total_bytes((bytes_of(given, w, added), sized(elements, given.width))),
            dtype=given.dtype,
            kind="convolution",
        )

    return work


def _backward(x: Inputs) -> OperatorWork | None:
    """convolution_backward(dy, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
    groups, output_mask)."""
    dy, given, w = x.tensor(0), x.tensor(1), x.tensor(2)
    mask = re.findall(r"[Tt]rue|[Ff]alse|1|0", x.value(10)[:60])
    transposed = x.flag(7)
    if dy is None or given is None or w is None or len(mask) != 3 or transposed is None:
        return None
    of_input, of_weight, _ = (m.lower() in ("true", "1") for m in mask)
    one = 2 * (given if transposed else dy).elements * math.prod(w.shape[1:])
    read = bytes_of(dy, w if of_input else None, given if of_weight else None)
    written = of_input * given.elements + of_weight * w.elements
    return OperatorWork(
        flops=one * (of_input + of_weight),
        bytes=total_bytes((read, sized(written, dy.width) if of_input or of_weight else 0)),
        dtype=dy.dtype,
        kind="convolution",
    )


_ADDED = partial(_batched, first=1, added=0, beta=3)

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten::mm", "aten::_int_mm", "aten::bmm"), partial(_batched, first=0)),
    **dict.fromkeys(("aten::addmm", "aten::addmm_", "aten::_addmm_activation"), _ADDED),
    **dict.fromkeys(("aten::baddbmm", "aten::baddbmm_"), _ADDED),
    **dict.fromkeys(("aten::linear", "aiter::gemm_a16w16", "vllm::rocm_unquantized_gemm"), _linear),
    **{f"aiter::gemm_a8w8{kind}": _quantised for kind in ("", "_CK", "_bpreshuffle", "_blockscale")},
    **{f"sgl_kernel::{kind}_scaled_mm": _quantised for kind in ("fp8", "int8", "fp8_blockwise")},
    "_C::cutlass_scaled_mm": partial(_quantised, first=1),
    **{f"{who}::{out}place_fused_experts": _experts for who in ("vllm", "sglang") for out in ("in", "out")},
    **dict.fromkeys(("vllm::rocm_aiter_fused_moe", "aiter::fused_moe_"), _experts),
    "aten::_scaled_mm": _scaled,
    "aten::_grouped_mm": partial(_groups, offsets=2, out_dtype=4, default=True),
    "aten::_scaled_grouped_mm": partial(_groups, offsets=4, out_dtype=7, default=False),
    "aten::cudnn_convolution": _forward(None, 2, 3, 4),
    "aten::cudnn_convolution_relu": _forward(2, 4, 3, 5),
    **dict.fromkeys(("aten::miopen_convolution", "aten::miopen_depthwise_convolution"), _forward(2, 3, 4, 5)),
    "aten::cudnn_convolution_transpose": _forward(None, 2, 4, 5, None, 3, 6),
    "aten::miopen_convolution_transpose": _forward(2, 3, 5, 6, None, 4, 7),
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
        _forward(2, 4, 3, 5, 6, 7, 8),
    ),
    "aten::_conv_depthwise2d": _forward(3, 5, 4, 6),
    "aten::convolution_backward": _backward,
}
