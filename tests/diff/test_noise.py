"""The mean step and its leaves: what scatter explains, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.compare.diff.two_sides import compare
from tests.diff.sides import rank_of_leaves, rank_of_steps, side
from tests.reports.build import ledger, rank


def test_steps_that_scatter_less_than_they_changed() -> None:
    # Means 100 and 110, variances 1 and 1, n = 3: se = 0.8165, f = 4, t(0.995, 4) = 4.604: 10 +- 3.76.
    one, two = side([rank_of_steps(0, [99, 100, 101])]), side([rank_of_steps(0, [109, 110, 111])])
    noise = compare(one, two).noise
    assert (noise.low_ns, noise.high_ns, noise.within_noise) == (6, 14, False)
    assert (noise.before_steps, noise.after_steps, noise.before_spread_ns) == (3, 3, 1)
    assert compare(one, two).outcome == "longer"
    near = side([rank_of_steps(0, [100, 102, 104])])
    found = compare(one, near)
    assert (found.outcome, found.noise.within_noise) == ("within_noise", True)
    assert "Within noise" in found.verdict


def test_ranks_are_one_sample_together() -> None:
    # Rank 0 is slow where rank 1 is fast: their mean does not scatter at all.
    one = side([rank_of_steps(0, [90, 110]), rank_of_steps(1, [130, 110])])
    two = side([rank_of_steps(0, [91, 111]), rank_of_steps(1, [131, 111])])
    noise = compare(one, two).noise
    assert (noise.before_spread_ns, noise.low_ns, noise.high_ns, noise.within_noise) == (0, 1, 1, False)


def test_what_is_not_known_says_why() -> None:
    single = compare(side([rank_of_steps(0, [100])]), side([rank_of_steps(0, [90])]))
    assert (single.noise.within_noise, single.outcome) == (None, "shorter")
    assert "one step on a side has no scatter" in single.verdict
    uneven = side([rank_of_steps(0, [100, 100]), rank_of_steps(1, [100])])
    assert "different numbers of steps" in compare(uneven, uneven).noise.reason
    window = side([rank(0, ledger(compute=10))])
    assert "have no steps" in compare(window, window).noise.reason


def test_a_leaf_has_its_own_scatter() -> None:
    # Compute 100, 102 to 110, 112; host 50, 10 to 55, 15: both grew, only compute beyond its scatter.
    def one(compute: list[int], host: list[int]) -> object:
        values = [0] * 15
        values[0], values[9] = sum(compute), sum(host)
        steps = {"compute": np.array(compute), "idle.host": np.array(host)}
        return side([rank_of_leaves(0, values, 4)], step_leaves=[steps])

    found = compare(
        one([100, 102, 100, 102], [50, 10, 50, 10]),  # type: ignore[arg-type]
        one([110, 112, 110, 112], [55, 15, 55, 15]),  # type: ignore[arg-type]
    )
    assert {x.leaf: x.within_noise for x in found.leaves} == {"compute": False, "idle.host": True}
    bare = side([rank_of_leaves(0, [9] * 15, 4)])
    assert {x.within_noise for x in compare(bare, replace(bare, path="b")).leaves} == {None}
