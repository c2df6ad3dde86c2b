"""Texts that differ in nothing but numbers, against what a pattern makes of each text alone."""

import re

from hypothesis import given
from hypothesis import strategies as st

from perfdoc.traces.lookups import first_alike

_NUMBER = re.compile(r"(?<![^\W_])[0-9]+")
_PIECES = st.sampled_from(
    ["step ", "7", "12", "p2p", "_", "x", "é", "\x1f", "\n", ", op_id = ", "0", "Ⅷ", ""]
)


@given(st.lists(st.lists(_PIECES, max_size=6).map("".join), max_size=12))
def test_the_first_of_all_that_differ_in_numbers_stands_for_them(texts: list[str]) -> None:
    forms = [_NUMBER.sub("0", text.replace("\x1f", " ")) for text in texts]
    assert first_alike(texts).tolist() == [forms.index(form) for form in forms]


def test_many_texts_are_looked_at_in_parts_and_those_of_one_form_stay_together() -> None:
    """Two forms in turn, 120,000 texts: three times as many as are looked at together. The last is new."""
    texts = [f"aten::add, op_id = {i}" if i % 2 else f"step {i}" for i in range(120_000)]
    assert first_alike([*texts, "last"]).tolist() == [*[0, 1] * 60_000, 120_000]
