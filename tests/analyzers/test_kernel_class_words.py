"""The index of required words leaves out only rows that could not have matched."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.kernel_class.classify import KernelClass, classify
from perfdoc.analyzers.kernel_class.names import MAX_TEXT, qualified_name
from perfdoc.analyzers.kernel_class.patterns import RULES
from perfdoc.analyzers.kernel_class.rules import WordIndex, required_words

with (Path(__file__).parent / "kernel_names.tsv").open(newline="", encoding="utf-8") as _file:
    NAMES = [row["name"] for row in csv.DictReader(_file, delimiter="\t", quoting=csv.QUOTE_NONE)]

WORDS = sorted({word for rule in RULES for word in required_words(rule.name.pattern) or ()})


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("gemm", {"gemm"}),
        ("Adam", {"adam"}),
        ("gemm|conv", {"gemm", "conv"}),
        ("(?i)(?:layer|rms)_?norm|(?<![a-z])ln_fwd", {"norm", "ln_fwd"}),
        ("elem(?:ent)?_?wise", {"elem"}),
        ("ab+cde", {"cde"}),
        ("ab*cde", {"cde"}),
        ("x{0,2}fused", {"fused"}),
        ("x{2}fu", {"fu"}),
        ("[Rr]educe", {"reduce"}),
        ("[Rs]educe", {"educe"}),
        (r"\bcub::(?:\w+::)*Device", {"device"}),
        (r"a\.kd$", {"a.kd"}),
        (r"(?:copy|cat)_(?:kernel|tensor)", {"copy", "cat"}),
        ("(?P<collective>dispatch|combine)", {"dispatch", "combine"}),
        ("(?=never_read)norm", {"norm"}),
        (r"\w+\d?", None),
        ("gemm|", None),
        ("gemm|.", None),
        ("(?:gemm)?", None),
    ],
)
def test_required_words(pattern: str, words: set[str] | None) -> None:
    assert required_words(pattern) == (None if words is None else frozenset(words))


@pytest.mark.parametrize("pattern", ["a)", "(a", "[a", "*a", "(?>a)", r"(a)\1"])
def test_what_cannot_be_read_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        required_words(pattern)


def test_hardly_a_row_is_tried_for_every_name() -> None:
    index = WordIndex(required_words(rule.name.pattern) for rule in RULES)
    assert len(index.rows("")) == 0
    # Of 119.
    assert 1 <= len(index.rows("ncclKernel_AllReduce_RING_LL_Sum_float")) <= 25


def first_match(name: str) -> tuple[str, KernelClass]:
    """Label and class by trying every row in order, as the table says."""
    text = name[:MAX_TEXT]
    qualified = qualified_name(text, text)
    for rule in RULES:
        fits = rule.name.search(qualified) and (rule.text is None or rule.text.search(text))
        if fits:
            return rule.label, rule.kernel_class
    return "other", KernelClass.OTHER


def check(name: str) -> None:
    kind = classify(name, name)
    assert (kind.label, kind.kernel_class) == first_match(name), name


def test_every_real_name_is_the_same_as_in_a_sequential_scan() -> None:
    for name in NAMES:
        for spelling in (name, name.upper(), name.lower(), name.replace("_", ""), name[5:], name[::2]):
            check(spelling)


def test_names_made_of_the_tables_own_words() -> None:
    chance = random.Random(7)
    glue = ("_", "::", "", "<", " ", "(", "2", "X")
    for _ in range(6_000):
        parts = [chance.choice((str.lower, str.upper, str.title))(chance.choice(WORDS)) for _ in range(4)]
        check("".join(p + chance.choice(glue) for p in parts))


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=6))
def test_any_text(parts: list[str]) -> None:
    check("".join(parts))


def test_letters_that_match_without_regard_to_case_outside_of_ascii() -> None:
    for name in ("\u017foftmax", "\u212aernel_\u017filu", "g\u0130emm", "d\u0131v", "\u017fum"):
        check(name)
    # The long s is an s to a case-insensitive pattern, and lower() leaves it alone.
    assert classify("\u017foftmax", "\u017foftmax").kernel_class is KernelClass.SOFTMAX
