"""Softmax, cross entropy and embeddings.

Softmax takes 5 operations for every element (maximum, difference, exponential, sum, quotient; its logarithm
as many), its gradient 4. Cross entropy is a log-softmax and a look-up of one element a row.
"""

from __future__ import annotations

import math

from perfdoc.analyzers.work.inputs import Inputs
from perfdoc.analyzers.work.operator_work import (
    Formula,
    OperatorWork,
    bytes_of,
    sized,
    total_bytes,
    vector_dtype,
)


def _softmax(x: Inputs) -> OperatorWork | None:
    """_softmax(x, dim, half_to_float): the latter widens 16 bits to 32."""
    given = x.tensor(0)
    if given is None:
        return None
    widens = x.flag(2)
    width = given.width if widens is False else 4 if widens else None
    return OperatorWork(
        flops=5 * given.elements,
        bytes=total_bytes((given.bytes, sized(given.elements, width))),
        dtype=vector_dtype(given.dtype),
        kind="softmax",
    )


def _softmax_backward(x: Inputs) -> OperatorWork | None:
    """_softmax_backward_data(dy, y, dim, input_dtype); the gradient is as wide as the result or narrower."""
    dy, y = x.tensor(0), x.tensor(1)
    if dy is None or y is None or dy.shape != y.shape:
        return None
    width = {"5": 2, "15": 2, "6": 4, "7": 8}.get(x.value(3))
    return OperatorWork(
        flops=4 * dy.elements,
        bytes=total_bytes((bytes_of(dy, y), sized(dy.elements, width))),
        dtype=vector_dtype(dy.dtype),
        kind="softmax",
    )


def _nll(log_probabilities: int, target: int) -> Formula:
    """Where the inputs stand: [rows, classes] and [rows]. One element a row is read, or written as the
    gradient; the fill of the gradient's others is an operator of its own."""

    def work(x: Inputs) -> OperatorWork | None:
        given, wanted = x.tensor(log_probabilities), x.tensor(target)
        if given is None or wanted is None or len(given.shape) != 2:
            return None
        rows = given.shape[0]
        return OperatorWork(
            flops=rows,
            bytes=total_bytes((sized(rows, given.width), wanted.bytes)),
            dtype=vector_dtype(given.dtype),
            kind="loss",
        )

    return work


def _embedding(x: Inputs) -> OperatorWork | None:
    """embedding(table [entries, width], indices): rows that may be equal are read once at least."""
    table, indices = x.tensor(0), x.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    entries, width = table.shape
    read = sized(min(indices.elements, entries) * width, table.width)
    return OperatorWork(
        flops=0,
        bytes=total_bytes((read, indices.bytes, sized(indices.elements * width, table.width))),
        dtype="unknown",
        kind="embedding",
    )


def _embedding_backward(x: Inputs) -> OperatorWork | None:
    """embedding_dense_backward(dy, indices, entries, …): the whole table's gradient is written."""
    dy, indices, entries = x.tensor(0), x.tensor(1), x.integer(2)
    if dy is None or indices is None or entries is None or not dy.shape or entries < 0:
        return None
    table = entries * dy.shape[-1]
    return OperatorWork(
        flops=math.prod(dy.shape),
        bytes=total_bytes((bytes_of(dy, indices), sized(table, dy.width))),
        dtype=vector_dtype(dy.dtype),
        kind="embedding",
    )


FORMULAS: dict[str, Formula] = {
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::nll_loss_forward": _nll(0, 1),
    "aten::nll_loss_backward": _nll(1, 2),
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
}
