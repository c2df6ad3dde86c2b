from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.markdown import escape, render_markdown, sentence
from tests.reports import build


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", "plain"),
        ("a|b\\|c", "a&#124;b&#92;&#124;c"),
        ("`x` <b> &", "&#96;x&#96; &#60;b&#62; &#38;"),
        ("*a* _b_ [c](d) ~e~", "\\*a\\* \\_b\\_ \\[c\\](d) \\~e\\~"),
        ("@bob #12", "@&#8203;bob #&#8203;12"),
        ("http://x www.x.y", "http:&#8203;//x www.&#8203;x.y"),
        ("- item", "&#8203;- item"),
        ("1. item", "&#8203;1. item"),
        ("19.0 %", "19.0 %"),
    ],
)
def test_text_loses_its_meaning_to_markdown(text: str, written: str) -> None:
    assert escape(text) == written


def test_back_quotes_in_our_sentences_are_code() -> None:
    assert sentence("use `a|b` now") == "use <code>a&#124;b</code> now"


def test_a_comment_stays_within_what_github_takes() -> None:
    base = build.one_rank()
    rules = [replace(build.rule("fires"), reason="<" * 5000, remedy="<" * 5000)] * 100
    text = render_markdown(replace(base, rules=rules))
    assert 50_000 < len(text) < 65_536
    assert text.endswith("Cut here: too long for a comment.\n")
