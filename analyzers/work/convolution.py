"""Convolutions: 2 operations for every output, input channel of its group and place of the kernel.

The gradient of the input and that of the weights take as many operations as the forward pass each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from perfdoc.analyzers.work.inputs import Inputs, Shape, Tensor
from perfdoc.analyzers.work.operator_work import Formula, OperatorWork, bytes_of, sized, total_bytes


def _outputs(
    x: Tensor, w: Tensor, padding: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Shape | None:
    """[N, Cout, ...] of a plain convolution."""
    axes = len(x.shape) - 2
    if axes < 1 or len(w.shape) != len(x.shape):
        return None
    padding, stride, dilation = (_each(v, axes) for v in (padding, stride, dilation))
    if not (len(padding) == len(stride) == len(dilation) == axes) or min(stride) < 1:
        return None
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d in zip(x.shape[2:], w.shape[2:], padding, stride, dilation, strict=True)
    ]
    return (x.shape[0], w.shape[0], *sizes) if min(sizes) >= 0 else None


def _each(value: Sequence[int], axes: int) -> Sequence[int]:
    return tuple(value) * axes if len(value) == 1 else value


def _forward(
    bias: int | None, padding: int, stride: int, dilation: int, transposed: int | None = None
) -> Formula:
    """x at 0 and weights at 1; where the other inputs stand. Of a transposed one nothing is known."""

    def work(x: Inputs) -> OperatorWork | None:
        given, w = x.tensor(0), x.tensor(1)
        if transposed is not None and x.flag(transposed) is not False:
            return None
        settings = [x.integers(i) for i in (padding, stride, dilation)]
        if given is None or w is None or any(s is None for s in settings):
            return None
        out = _outputs(given, w, *(s for s in settings if s is not None))
        if out is None:
            return None
        added = x.tensor(bias) if bias is not None else None
        elements = math.prod(out)
        return OperatorWork(
            flops=2 * elements * math.prod(w.shape[1:]) + (elements if added is not None else 0),
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


FORMULAS: dict[str, Formula] = {
    "aten::cudnn_convolution": _forward(None, 2, 3, 4),
    "aten::cudnn_convolution_relu": _forward(2, 4, 3, 5),
    "aten::miopen_convolution": _forward(2, 3, 4, 5),
    "aten::_convolution": _forward(2, 4, 3, 5, 6),
    "aten::_conv_depthwise2d": _forward(3, 5, 4, 6),
    "aten::convolution_backward": _backward,
}
