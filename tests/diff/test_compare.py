"""Whatever the ledgers are, the parts of a difference add up to it, and it turns round exactly."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.compare.diff.result import Diff
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import Loaded
from perfdoc.reports.leaves import LEAVES
from tests.amount import tries
from tests.diff.sides import rank_of_leaves, side

_NS = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 10**13))
_LEAVES = st.lists(_NS, min_size=len(LEAVES), max_size=len(LEAVES)).filter(any)
_SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))


@st.composite
def sides(draw: st.DrawFn) -> tuple[Loaded, Loaded]:
    count, steps_one, steps_two = draw(_SHAPE)

    def one(steps: int) -> Loaded:
        return side([rank_of_leaves(i, draw(_LEAVES), steps) for i in range(count)])

    return one(steps_one), one(steps_two)


@settings(max_examples=tries(25, 60))
@given(sides())
def test_every_table_adds_up_to_the_change(both: tuple[Loaded, Loaded]) -> None:
    found = compare(*both)
    assert sum(x.change_ns for x in found.leaves) == found.total.change_ns
    assert sum(x.before_ns for x in found.leaves) == found.total.before_ns
    assert sum(r.change_ns for r in found.ranks) == found.total.change_ns
    for r in found.ranks:
        assert sum(r.leaves_change_ns.values()) == r.change_ns
    assert found.kernels.total is not None
    assert sum(k.change_ns for k in found.kernels.classes) == found.kernels.total.change_ns
    # A rounded mean step is within half a nanosecond of the exact one, on every rank.
    for loaded, said in zip(both, (found.total.before_ns, found.total.after_ns), strict=True):
        exact = sum(r.window.duration_ns / r.window.steps for r in loaded.diagnosis.ranks)
        assert abs(said - exact) <= len(found.ranks) / 2 + exact * 1e-15


@settings(max_examples=tries(25, 60))
@given(sides())
def test_a_side_equals_itself_and_the_way_back_is_the_negative(both: tuple[Loaded, Loaded]) -> None:
    same = compare(both[0], both[0])
    assert (same.outcome, same.total.change_ns, same.mean.change_ns) == ("no_change", 0, 0)
    assert all(x.change_ns == 0 for x in same.leaves)
    assert not same.kernels.kernels
    assert not same.rules
    assert same.verdict.startswith("No change: a step takes")
    assert changes(compare(*both)) == negative(changes(compare(both[1], both[0])))


def changes(found: Diff) -> dict[str, Sequence[int]]:
    return {
        "total": [found.total.change_ns],
        "leaves": [x.change_ns for x in found.leaves],
        "ranks": [r.change_ns for r in found.ranks],
        "classes": [c.change_ns for c in sorted(found.kernels.classes, key=lambda c: c.name)],
        "kernels": [
            ns
            for k in sorted(found.kernels.kernels, key=lambda k: k.name)
            for ns in (k.change_ns, k.count_effect_ns, k.time_effect_ns)
            if ns is not None
        ],
        "exposed": [d.exposed.change_ns for d in found.dimensions],
    }


def negative(of: dict[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    return {name: [-ns for ns in values] for name, values in of.items()}


def test_two_ranks_by_hand() -> None:
    # Rank 0: 100 ns of compute to 90 and 20 of DP; rank 1: 100 ns to 120. Two steps of half that each.
    order = [leaf.path for leaf in LEAVES]

    def row(compute: int, dp: int) -> list[int]:
        return [{"compute": compute, "exposed_comm.dp": dp}.get(path, 0) for path in order]

    before = side([rank_of_leaves(0, row(200, 0), 2), rank_of_leaves(1, row(200, 0), 2)])
    after = side([rank_of_leaves(0, row(180, 40), 2), rank_of_leaves(1, row(240, 0), 2)])
    found = compare(before, after)
    assert {x.leaf: (x.before_ns, x.after_ns, x.change_ns) for x in found.leaves} == {
        "compute": (200, 210, 10),
        "exposed_comm.dp": (0, 20, 20),
    }
    assert [(r.label, r.change_ns, r.leaves_change_ns) for r in found.ranks] == [
        ("rank 0", 10, {"compute": -10, "exposed_comm.dp": 20}),
        ("rank 1", 20, {"compute": 20}),
    ]
    assert (found.mean.before_ns, found.mean.after_ns, found.mean.change_ns) == (100, 115, 15)
    assert found.outcome == "longer"
    assert "A step takes 115 ns, +15 ns (+15.0 %) against 100 ns before (mean over 2 ranks)." in found.verdict
    assert found.verdict.endswith("Most of it, summed over 2 ranks: exposed comm DP +20 ns, compute +10 ns.")
