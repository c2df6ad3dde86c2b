"""Which kernel owns each nanosecond of compute."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.efficiency.partition import owned_ns

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


@given(SPANS)
def test_each_nanosecond_belongs_to_the_running_kernel_that_ends_last(spans: list[tuple[int, int]]) -> None:
    """By brute force: of those that run at an instant, the one that ends last; of equals the first to start,
    then the first in the list."""
    spans = sorted(spans, key=lambda s: s[0])
    start = np.array([s for s, _ in spans], np.int64)
    end = np.array([s + d for s, d in spans], np.int64)
    owned = [0] * len(spans)
    for t in range(50):
        running = [i for i in range(len(spans)) if start[i] <= t < end[i]]
        if running:
            owned[min(running, key=lambda i: (-end[i], start[i], i))] += 1
    assert owned_ns(start, end).tolist() == owned
