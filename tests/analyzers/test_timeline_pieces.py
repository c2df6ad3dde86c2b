"""Painting layers over one another, and pooling what is too short to draw."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.timeline.segments import NOTHING, Layer, Segments, drawn, paint, pool, segments_of

SPAN = 60


def by_code(segments: Segments) -> list[int]:
    """Nanoseconds of each of five codes."""
    return [int(segments.duration_ns[segments.code == code].sum()) for code in range(5)]


@st.composite
def layers(draw: st.DrawFn) -> list[Layer]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        cuts = sorted(draw(st.sets(st.integers(-5, SPAN + 5), max_size=16)))
        cuts = cuts[: len(cuts) // 2 * 2]
        codes = draw(st.lists(st.integers(0, 3), min_size=len(cuts) // 2, max_size=len(cuts) // 2))
        found.append(
            Layer(
                start_ns=np.array(cuts[::2], np.int64),
                end_ns=np.array(cuts[1::2], np.int64),
                code=np.array(codes, np.int64),
                item=np.arange(len(codes), dtype=np.int64),
            )
        )
    return found


def brute(painted: list[Layer]) -> list[tuple[int, int]]:
    """Code and item of each nanosecond."""
    shown = [(NOTHING, NOTHING)] * SPAN
    for layer in painted:
        assert layer.item is not None
        for a, b, code, item in zip(layer.start_ns, layer.end_ns, layer.code, layer.item, strict=True):
            for t in range(max(int(a), 0), min(int(b), SPAN)):
                shown[t] = (int(code), int(item))
    return shown


@given(layers())
def test_paint_against_every_nanosecond(painted: list[Layer]) -> None:
    found = paint(painted, 0, SPAN)
    assert found.start_ns[0] == 0
    assert found.end_ns[-1] == SPAN
    assert (found.start_ns[1:] == found.end_ns[:-1]).all()
    again = [
        (int(c), int(i))
        for a, b, c, i in zip(found.start_ns, found.end_ns, found.code, found.item, strict=True)
        for _ in range(int(b - a))
    ]
    assert again == brute(painted)
    # Nothing is cut where nothing changes.
    changes = (found.code[1:] != found.code[:-1]) | (found.item[1:] != found.item[:-1])
    assert changes.all()


def by_hand() -> Segments:
    # 100 ns: a long stretch of code 0, ten short ones of 1 and 2 in turn, nothing, and a long one of 1.
    length = np.array([40, *[2, 3] * 5, 10, 25])
    code = np.array([0, *[1, 2] * 5, NOTHING, 1])
    start = np.cumsum(np.append(1_000, length))[:-1]
    pieces = paint(
        [Layer(start_ns=start[code >= 0], end_ns=(start + length)[code >= 0], code=code[code >= 0])],
        1_000,
        1_100,
    )
    return segments_of(pieces, np.arange(len(pieces)))


def test_pool_by_hand() -> None:
    # With four bins of 25 ns, [1040, 1050) and [1050, 1075) would be two pools; limit 6 needs just that.
    found = pool(by_hand(), 6)
    rows = list(
        zip(
            found.start_ns.tolist(),
            found.duration_ns.tolist(),
            found.code.tolist(),
            found.stretches.tolist(),
            found.count.tolist(),
            strict=True,
        )
    )
    # Bins are made fewer from 6: 17 ns wide at 6 bins, pools begin at 1040 (bin 2) and 1052 (bin 3). In the
    # first are stretches 1 to 5 (codes 1, 2, 1, 2, 1), in the second the other five and the nothing.
    assert rows == [
        (1_000, 40, 0, 1, 0),
        (1_040, 6, 1, 3, 1 + 3 + 5),
        (1_046, 6, 2, 2, 2 + 4),
        (1_052, 10, NOTHING, 1, 11),
        (1_062, 4, 1, 2, 7 + 9),
        (1_066, 9, 2, 3, 6 + 8 + 10),
        (1_075, 25, 1, 1, 12),
    ]
    assert len(drawn(found)) == 6


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(-1, 4)), min_size=1, max_size=80), st.integers(1, 40)
)
def test_pools_lose_nothing(rows: list[tuple[int, int]], limit: int) -> None:
    length = np.array([n for n, _ in rows], np.int64)
    start = np.cumsum(np.append(0, length))[:-1]
    made = Segments(
        start_ns=start,
        duration_ns=length,
        code=np.array([c for _, c in rows], np.int64),
        item=np.arange(len(rows), dtype=np.int64),
        stretches=np.ones(len(rows), np.int64),
        count=np.full(len(rows), 3, np.int64),
    )
    found = pool(made, limit)
    assert len(drawn(found)) <= max(limit, 5)
    assert (found.start_ns[1:] == (found.start_ns + found.duration_ns)[:-1]).all()
    assert (int(found.start_ns[0]), int(found.duration_ns.sum())) == (0, int(length.sum()))
    assert by_code(drawn(found)) == by_code(drawn(made))
    assert int(found.count.sum()) == 3 * len(rows)
    for code, item, held in zip(found.code, found.item, found.stretches, strict=True):
        assert made.code[item] == code
        if held == 1:  # it is drawn where it was, or inside its pool
            assert int(made.duration_ns[item]) in found.duration_ns[found.item == item]
    assert by_code(drawn(pool(found, max(limit // 2, 1)))) == by_code(drawn(made))
