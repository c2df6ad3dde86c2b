"""Student's t against tables and against scipy, which perfdoc itself does without."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.compare.student import student_t


def test_by_hand() -> None:
    # One degree of freedom is Cauchy's distribution, tan(pi (p - 1/2)); two have a closed form.
    assert student_t(1, 0.99) == pytest.approx(math.tan(math.pi * 0.49), rel=1e-13)
    assert student_t(2, 0.99) == pytest.approx(0.98 * math.sqrt(2 / (4 * 0.99 * 0.01)), rel=1e-13)
    assert student_t(4, 0.99) == pytest.approx(3.746947388, rel=1e-9)  # as printed tables have it
    assert student_t(math.inf, 0.975) == pytest.approx(1.959963985, rel=1e-9)


def test_its_ends() -> None:
    assert student_t(3, 0.5) == 0
    assert student_t(3, 1) == math.inf
    assert student_t(3, 0) == -math.inf
    assert student_t(3, 0.1) == -student_t(3, 0.9)
    for freedom, confidence in ((0, 0.99), (-1, 0.99), (math.nan, 0.99), (3, 1.01), (3, math.nan)):
        assert math.isnan(student_t(freedom, confidence))


@given(st.floats(0.5, 1e8), st.one_of(st.floats(0.01, 0.99), st.floats(1e-9, 0.1).map(lambda q: 1 - q)))
def test_as_scipy(freedom: float, confidence: float) -> None:
    from scipy.stats import t  # takes half a second, also where only collected

    tolerance = 1e-12 if freedom < 1e4 else 1e-9
    assert student_t(freedom, confidence) == pytest.approx(
        float(t.ppf(confidence, freedom)), rel=tolerance, abs=1e-9
    )
