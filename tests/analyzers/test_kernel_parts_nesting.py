"""Nesting against a stack that is pushed and popped by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.kernels.nesting import DEEPEST, NONE, nest

Span = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 40, depth: int = 0) -> list[Span]:
    """Spans that nest, touch and repeat."""
    spans: list[Span] = []
    at = low
    while at < high and draw(st.booleans()):
        a = draw(st.integers(at, high))
        b = draw(st.integers(a, high))
        spans.append((a, b))
        if depth < 3 and b > a:
            spans += draw(nested(a, b, depth + 1))
        at = b
    return spans


def open_at(spans: list[Span], time: int) -> list[Span]:
    """Outer first; of two alike any order will do."""
    return sorted((s for s in spans if s[0] <= time < s[1]), key=lambda s: (s[0], -s[1]))


@given(nested(), st.randoms(use_true_random=False))
def test_the_innermost_open_span_and_those_around_it(spans: list[Span], chance) -> None:  # type: ignore[no-untyped-def]
    chance.shuffle(spans)
    found = nest(*(np.array([s[i] for s in spans], np.int64) for i in (0, 1)))
    times = np.arange(-1, 42)
    for time, at in zip(times.tolist(), found.at(times).tolist(), strict=True):
        chain = []
        while at != NONE:
            chain.append(spans[found.row[at]])
            at = int(found.parent[at])
        assert chain[::-1] == open_at(spans, time)
    depth_of = {p: level for level, positions in enumerate(found.levels) for p in positions.tolist()}
    assert sorted(depth_of) == list(range(len(found.row)))
    for position, parent in enumerate(found.parent.tolist()):
        assert depth_of[position] == (0 if parent == NONE else depth_of[parent] + 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=10))
def test_crossing_spans_are_cut_at_the_one_they_start_in(raw: list[Span]) -> None:
    spans = sorted(((a, a + n) for a, n in raw if n), key=lambda s: (s[0], -s[1]))
    stack: list[int] = []
    cut: list[Span] = []
    for a, b in spans:
        while stack and stack[-1] <= a:
            stack.pop()
        b = min(b, stack[-1]) if stack else b
        stack.append(b)
        cut.append((a, b))
    found = nest(*(np.array([s[i] for s in spans], np.int64) for i in (0, 1)))
    times = np.arange(0, 50)
    seen = [NONE if at == NONE else spans[found.row[at]][0] for at in found.at(times).tolist()]
    expected = [open_at(cut, t) for t in times.tolist()]
    assert seen == [chain[-1][0] if chain else NONE for chain in expected]


def test_hostile_depth_is_bounded() -> None:
    count = 3_000
    at = np.arange(count)
    found = nest(at, 10 * count - at)
    assert len(found.levels) == DEEPEST
    assert len(found.row) == DEEPEST
