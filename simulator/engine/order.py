"""A numbering in which every task waits for lower numbers only."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from perfdoc.simulator.engine.graph import I64


def topological_order(tasks: int, source: I64, target: I64) -> I64 | None:
    """Tasks in such an order; None where tasks wait for one another in a circle."""
    by_source = np.argsort(source, kind="stable")
    first = np.zeros(tasks + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=tasks), out=first[1:])
    waits_for = np.bincount(target, minlength=tasks).astype(np.int64)
    order: I64 = _run()(first, np.ascontiguousarray(target[by_source]), waits_for)
    return order if len(order) == tasks else None


@cache
def _run() -> Any:
    import numba

    column = "int64[::1]"
    return numba.njit(f"{column}({', '.join([column] * 3)})", nogil=True)(_ready_first)


def _ready_first(first: I64, target: I64, waits_for: I64) -> I64:
    n = len(waits_for)
    order = np.empty(n, np.int64)
    found = 0
    for i in range(n):
        if waits_for[i] == 0:
            order[found] = i
            found += 1
    at = 0
    while at < found:
        for e in range(first[order[at]], first[order[at] + 1]):
            t = target[e]
            waits_for[t] -= 1
            if waits_for[t] == 0:
                order[found] = t
                found += 1
        at += 1
    return order[:found].copy()
