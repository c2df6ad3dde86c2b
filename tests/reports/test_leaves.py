from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from perfdoc.reports.leaves import LEAVES, family_shares, leaf_shares, leaf_values, stack
from tests.reports.build import ONE_LEDGER, ledger


def _tenths(shown: str) -> int:
    return 0 if shown.startswith("<") else round(10 * float(shown.removesuffix(" %")))


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
    # Rounded down 60.1 + 19.8 + 0.2 + 19.7 = 99.8: the two tenths go to .61 compute and .59 memcpy.
    values = leaf_values(ledger(**ONE_LEDGER))
    assert family_shares(values) == {
        "compute": "60.2 %",
        "exposed_comm": "19.8 %",
        "exposed_memcpy": "0.3 %",
        "idle": "19.7 %",
    }
    shares = dict(zip((leaf.path for leaf in LEAVES), leaf_shares(values), strict=True))
    assert shares["exposed_comm.dp"] == "19.0 %"
    assert shares["exposed_comm.unknown"] == "0.8 %"
    assert shares["idle.unexplained"] == "<0.1 %"
    assert shares["idle.data"] == "0.0 %"


_LEAF_VALUES = st.lists(st.integers(min_value=0, max_value=10**12), min_size=15, max_size=15)


@given(_LEAF_VALUES)
def test_leaves_add_up_to_their_family_and_to_100(values: list[int]) -> None:
    leaf = [_tenths(text) for text in leaf_shares(values)]
    assert sum(leaf) == (1000 if sum(values) else 0)
    for family, text in family_shares(values).items():
        assert sum(t for t, x in zip(leaf, LEAVES, strict=True) if x.family == family) == _tenths(text)
    for tenth, value in zip(leaf, values, strict=True):
        assert abs(tenth - 1000 * value / max(sum(values), 1)) < 1.0001


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
