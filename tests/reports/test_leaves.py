from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from perfdoc.reports.leaves import LEAVES, family_shares, leaf_values, stack
from perfdoc.reports.llm import render_llm
from perfdoc.reports.outline import sections_of
from perfdoc.reports.over_ranks import mean_words, total_of, worst_of
from perfdoc.reports.view import time_view
from perfdoc.results.figures import duration, per_cent, shares
from tests.reports.build import ONE_LEDGER, communication, diagnosis, ledger, rank


def test_every_leaf_of_the_ledger_is_there_once_and_in_order() -> None:
    keys = ["compute", "dp", "tp", "cp", "ep", "pp", "other", "unknown", "memcpy"]
    keys += [f"idle_{c}" for c in ("host", "gc", "data", "dependency", "launch_latency", "unexplained")]
    made = ledger(**{key: 10**i for i, key in enumerate(keys)})
    assert leaf_values(made) == [10**i for i in range(15)]
    assert sum(leaf_values(made)) == made.total
    assert len({leaf.letter for leaf in LEAVES}) == len({leaf.css for leaf in LEAVES}) == 15


def test_shares_by_hand() -> None:
    # 463,440,441 ns: compute 60.16 %, dp 18.97, unknown 0.863, memcpy 0.259, host 15.10, gc 0.194,
    # dependency 3.237, launch latency 1.208, unexplained 0.0015. Families: 60.16, 19.83, 0.26, 19.75.
    # Each is rounded by itself, as a sentence about it alone: leaves need not add up to their family's.
    values = leaf_values(ledger(**ONE_LEDGER))
    assert family_shares(values) == {
        "compute": "60.2 %",
        "exposed_comm": "19.8 %",
        "exposed_memcpy": "0.3 %",
        "idle": "19.7 %",
    }
    by_leaf = dict(zip((leaf.path for leaf in LEAVES), shares(values), strict=True))
    assert by_leaf["exposed_comm.dp"] == "19.0 %"
    assert by_leaf["exposed_comm.unknown"] == "0.9 %"
    assert by_leaf["idle.unexplained"] == "<0.1 %"
    assert by_leaf["idle.data"] == "0.0 %"


_LEAF_VALUES = st.lists(st.integers(min_value=0, max_value=10**12), min_size=15, max_size=15)


@given(_LEAF_VALUES)
def test_a_share_of_a_table_is_that_of_a_sentence(values: list[int]) -> None:
    """A verdict writes `per_cent` of one leaf: where that is 23.0 %, the table beside it says no 22.9 %."""
    total = max(sum(values), 1)
    assert shares(values) == [per_cent(value / total) for value in values]
    families = [
        sum(v for v, x in zip(values, LEAVES, strict=True) if x.family == f) for f in family_shares(values)
    ]
    assert list(family_shares(values).values()) == [per_cent(value / total) for value in families]


@given(_LEAF_VALUES)
def test_a_drawn_bar_fills_100_per_cent_without_gaps(values: list[int]) -> None:
    rows = [(leaf.path, leaf.css, leaf.letter, "", value) for leaf, value in zip(LEAVES, values, strict=True)]
    bar = stack(rows)
    at = Decimal(0)
    for part in bar:
        assert Decimal(part.x.removesuffix("%")) == at
        at += Decimal(part.width.removesuffix("%"))
    assert at == (100 if sum(values) else 0)
    assert sum(part.ns for part in bar) == sum(values)


def test_sums_over_ranks_and_steps_are_said_as_the_ledger_says_them() -> None:
    """Two ranks of two steps of 10 ms: 8 ms of all-reduce on rank 0, 4 ms on rank 1, all of it exposed, are
    3 ms a step; 28 ms of compute are 7 ms. Rank 0's 8 ms are what it waits for most."""
    ranks = [
        rank(
            number,
            ledger(compute=20_000_000 - exposed, dp=exposed),
            steps=2,
            rows=[communication("dp", exposed, hidden_ns=0)],
        )
        for number, exposed in ((0, 8_000_000), (1, 4_000_000))
    ]
    made = diagnosis([replace(each, window=replace(each.window, kind="steps")) for each in ranks])
    words = mean_words(12_000_000, made.ranks)
    assert words == "3.000 ms a step"
    rows = {row.label: row.mean_ns for row in time_view(made, None).rows}
    assert rows == {"compute": 7_000_000, "exposed comm DP": 3_000_000}
    told = render_llm(made)
    for label, share, ns in (("compute", "70.0 %", 7_000_000), ("exposed comm DP", "30.0 %", 3_000_000)):
        assert f"- {label}: {share}, {duration(ns)} a step" in told
    (section,) = [each for each in sections_of(made) if each.key == "communication"]
    assert f"DP all_reduce, {words} (100.0 % of its time)" in section.sentences[0]
    most = total_of(made.ranks, lambda each: each.ledger_ns.exposed_comm.dp)
    assert worst_of(most) == "; most on rank 0: 40.0 %"
