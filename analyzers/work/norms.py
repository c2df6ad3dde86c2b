"""Normalisations, forward and backward.

Operations for every element, and for every pair of statistics (mean and reciprocal deviation of a row, a
group or a channel): layer, group and batch norm 5 (a sum, a square added, one multiply-add that normalises
and scales) and 6; RMS norm 4 and 2; backward 9 (RMS norm 10, without weights 8). They are memory-bound a
hundred times over: the bytes decide. Row statistics are left out of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.work.inputs import Inputs, Tensor
from perfdoc.analyzers.work.operator_work import (
    Formula,
    OperatorWork,
    bytes_of,
    total_bytes,
    vector_dtype,
)


def _norm(
    x: Tensor,
    *,
    each: int,
    statistics: int = 0,
    per_statistic: int = 0,
    read: Sequence[Tensor | None],
    written: Sequence[Tensor | None],
) -> OperatorWork:
    return OperatorWork(
        flops=each * x.elements + per_statistic * statistics,
        bytes=total_bytes((bytes_of(*read), bytes_of(*written))),
        dtype=vector_dtype(x.dtype),
        kind="norm",
    )


def _layer_norm(x: Inputs) -> OperatorWork | None:
    """native_layer_norm(x, normalized_shape, weight, bias, eps)."""
    given, w, b = x.tensor(0), x.tensor(2), x.tensor(3)
    if given is None or (rows := _rows(x, given, w)) is None:
        return None
    return _norm(given, each=5, statistics=rows, per_statistic=6, read=(given, w, b), written=(given,))


def _rows(x: Inputs, given: Tensor, weight: Tensor | None) -> int | None:
    """Rows that are normalised each for itself."""
    shape = weight.shape if weight is not None else x.integers(1)
    if not shape or given.shape[-len(shape) :] != tuple(shape):
        return None
    return math.prod(given.shape[: -len(shape)])


def _layer_norm_backward(x: Inputs) -> OperatorWork | None:
    """native_layer_norm_backward(dy, x, normalized_shape, mean, rstd, weight, bias, mask)."""
    dy, given, w, b = x.tensor(0), x.tensor(1), x.tensor(5), x.tensor(6)
    if dy is None or given is None or dy.shape != given.shape:
        return None
    return _norm(given, each=9, read=(dy, given, w), written=(given, w, b))


def _rms_norm(x: Inputs) -> OperatorWork | None:
    """_fused_rms_norm(x, normalized_shape, weight, eps)."""
    given, w = x.tensor(0), x.tensor(2)
    if given is None or (rows := _rows(x, given, w)) is None:
        return None
    return _norm(given, each=4, statistics=rows, per_statistic=2, read=(given, w), written=(given,))


def _rms_norm_backward(x: Inputs) -> OperatorWork | None:
    """_fused_rms_norm_backward(dy, x, normalized_shape, rstd, weight, mask)."""
    dy, given, w = x.tensor(0), x.tensor(1), x.tensor(4)
    if dy is None or given is None or dy.shape != given.shape:
        return None
    return _norm(given, each=10 if w is not None else 8, read=(dy, given, w), written=(given, w))


def _group_norm(x: Inputs) -> OperatorWork | None:
    """native_group_norm(x, weight, bias, N, C, HxW, group, eps)."""
    given, w, b, groups = x.tensor(0), x.tensor(1), x.tensor(2), x.integer(6)
    if given is None or not given.shape or (groups is not None and groups < 0):
        return None
    statistics = given.shape[0] * groups if groups is not None else 0
    return _norm(given, each=5, statistics=statistics, per_statistic=6, read=(given, w, b), written=(given,))


def _group_norm_backward(x: Inputs) -> OperatorWork | None:
    """native_group_norm_backward(dy, x, mean, rstd, weight, N, C, HxW, group, mask)."""
    dy, given, w = x.tensor(0), x.tensor(1), x.tensor(4)
    if dy is None or given is None or dy.shape != given.shape:
        return None
    return _norm(given, each=9, read=(dy, given, w), written=(given, w, w))


@dataclass(frozen=True, kw_only=True)
class _BatchNorm:
    """Where the inputs stand: x, weight, bias, running mean and variance, training."""

    running: tuple[int, int] = (3, 4)
    training: int | None = 5
    """None: always."""


def _batch_norm(where: _BatchNorm) -> Formula:
    def work(x: Inputs) -> OperatorWork | None:
        given, w, b = x.tensor(0), x.tensor(1), x.tensor(2)
        if given is None or len(given.shape) < 2:
            return None
        running = x.tensors(*where.running)
        trains = True if where.training is None else x.flag(where.training)
        if trains is None:
            return None
        if not trains:  # with given statistics one multiply-add is left
            return _norm(given, each=2, read=(given, w, b, *running), written=(given,))
        channels = given.shape[1]
        return _norm(
            given,
            each=5,
            statistics=channels,
            per_statistic=6,
            read=(given, w, b, *running),
            written=(given, *running),
        )

    return work


def _batch_norm_backward(gradient: int, given: int) -> Formula:
    """weight stands behind the two."""

    def work(x: Inputs) -> OperatorWork | None:
        dy, forward, w = x.tensor(gradient), x.tensor(given), x.tensor(2)
        if dy is None or forward is None or dy.shape != forward.shape:
            return None
        return _norm(forward, each=9, read=(dy, forward, w), written=(forward, w, w))

    return work


FORMULAS: dict[str, Formula] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
    "aten::native_batch_norm": _batch_norm(_BatchNorm()),
    "aten::cudnn_batch_norm": _batch_norm(_BatchNorm()),
    "aten::miopen_batch_norm": _batch_norm(_BatchNorm()),
    "aten::_batch_norm_with_update": _batch_norm(_BatchNorm(training=None)),
    "aten::native_batch_norm_backward": _batch_norm_backward(0, 1),
    "aten::miopen_batch_norm_backward": _batch_norm_backward(1, 0),
    "aten::cudnn_batch_norm_backward": _batch_norm_backward(0, 1),
}
