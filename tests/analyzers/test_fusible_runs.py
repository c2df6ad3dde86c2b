"""Runs of kernels that one could replace."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.efficiency.bounds import fusible_ns


def found(*kernels: tuple[bool, int, int]) -> int:
    fusible, stream, duration = (np.array(column) for column in zip(*kernels, strict=True))
    return fusible_ns(fusible, stream, duration)


def test_all_but_the_longest_of_each_run() -> None:
    """Stream 7: 10, 30, 20 between GEMMs save 30; one alone saves nothing; 5 and 5 save 5. Stream 9's kernel
    in between starts no run."""
    assert (
        found(
            *[(True, 7, 10), (True, 7, 30), (True, 9, 100), (True, 7, 20), (False, 7, 500)],
            *[(True, 7, 40), (False, 7, 500), (True, 7, 5), (True, 7, 5)],
        )
        == 35
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=20))
def test_against_a_walk_over_each_stream(kernels: list[tuple[bool, int, int]]) -> None:
    saved = 0
    for stream in range(3):
        run: list[int] = []
        for fusible, mine, duration in [*kernels, (False, stream, 0)]:
            if mine != stream:
                continue
            if fusible:
                run.append(duration)
            elif run:
                saved += sum(run) - max(run)
                run = []
    assert found(*kernels) == saved
