"""Step times of runs that scatter as machines do: by shape, and by what a run shares with its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

F64: TypeAlias = npt.NDArray[np.float64]
Draw: TypeAlias = Callable[[np.random.Generator, int, int], F64]
"""Runs in order of time: a row for each trial, a column for each run; 1 is the typical step."""

QUICK, SLOW = 1.0, 1.4
"""A core to itself, and a core whose other half a neighbour uses (seen on a virtual machine of two cores)."""


def _two_modes(slow_share: float) -> Draw:
    def draw(random: np.random.Generator, trials: int, runs: int) -> F64:
        level = np.where(random.random((trials, runs)) < slow_share, SLOW, QUICK)
        return level + 0.002 * random.standard_normal((trials, runs))

    return draw


def _skewed(random: np.random.Generator, trials: int, runs: int) -> F64:
    """Never quicker than it can be, and now and then much slower."""
    return 1 + 0.03 * np.exp(random.standard_normal((trials, runs)))


def _tailed(random: np.random.Generator, trials: int, runs: int) -> F64:
    """Of no variance, as Student's t of two degrees of freedom."""
    return np.maximum(1 + 0.01 * random.standard_t(2, (trials, runs)), 0.1)


def _outliers(random: np.random.Generator, trials: int, runs: int) -> F64:
    """Half of a Cauchy distribution: of no mean."""
    return 1 + 0.01 * np.minimum(np.abs(random.standard_cauchy((trials, runs))), 1e4)


def _stretches(stay: float) -> Draw:
    """Two modes, the next run in the same one with so much probability."""

    def draw(random: np.random.Generator, trials: int, runs: int) -> F64:
        changes = random.random((trials, runs)) > stay
        changes[:, 0] = random.random(trials) < 0.5
        slow = np.cumsum(changes, axis=1) % 2 == 1
        return np.where(slow, SLOW, QUICK) + 0.002 * random.standard_normal((trials, runs))

    return draw


def _drifting(share: float) -> Draw:
    """2 % of normal scatter; neighbours in time have so much correlation (first-order autoregression)."""

    def draw(random: np.random.Generator, trials: int, runs: int) -> F64:
        level = random.standard_normal((trials, runs))
        for i in range(1, runs):
            level[:, i] = share * level[:, i - 1] + np.sqrt(1 - share**2) * level[:, i]
        return 1 + 0.02 * level

    return draw


EXCHANGEABLE: dict[str, Draw] = {
    "quick, 1 of 10 runs slow": _two_modes(0.1),
    "quick, 2 of 10 runs slow": _two_modes(0.2),
    "quick, 4 of 10 runs slow": _two_modes(0.4),
    "skewed (log-normal)": _skewed,
    "tails (t of 2 degrees)": _tailed,
    "outliers (half Cauchy)": _outliers,
}
"""The order of the runs says nothing of their figures."""
STRETCHED: dict[str, Draw] = {
    "stretches of 3 runs": _stretches(0.7),
    "stretches of 10 runs": _stretches(0.9),
    "drift, correlation 0.5": _drifting(0.5),
    "drift, correlation 0.8": _drifting(0.8),
}
"""Runs beside one another are alike."""
