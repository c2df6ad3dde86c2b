"""Diagnoses of planted jobs in which every string that may come from outside is one that tries to be markup,
code or a terminal command."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfdoc.results import CapabilityRow, Diagnosis, Quality, RuleResult
from perfdoc.results.rules import Evidence, Related
from tests.amount import some
from tests.reports import jobs
from tests.reports.fill import with_text

HOSTILE = [
    "<svg onload=window.pwned=1><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "`<img src=x onerror=window.pwned=1>`",
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=document.title='pwned'>",
    '" onmouseover="document.title=\'pwned\'" x="',
    "'><svg onload=document.title='pwned'>",
    "{{7*7}}{% for x in y %}${7*7}",
    "a|b\\|c `tick` *bold* [link](http://evil.example) @octocat #1 http://evil.example",
    "\x1b]0;pwned\x07\x1b[31mred\x00\x7f\x9b2J",
    "safe\u202egpj.exe\u2066x\u2069\u200f\u061c\u200b\ufeff",
    "half \ud83d pair",
    "line\nbreak\r\ttab\u2028sep",
    "</style><style>*{display:none}</style></title>",
    "x" * 100_000,
    "<b>" * 40_000,
    "\x1b[2J" * 30_000,
    "- item\n# title\n| a | b |",
]


AGAIN = {HOSTILE[i] for i in (1, 2, 4, 6, 13, 14, 16)}
"""What another one tries as well: markup, a word of a URL, and length without markup."""
TEXTS = some(HOSTILE, lambda text: text not in AGAIN)
"""For parametrize: the others by default."""


@cache
def hostile(text: str, name: str = "exposed") -> Diagnosis:
    """A planted job of which every string that may come from outside is the same text. What closed sets of
    words name (causes, dimensions of the ledger) is no string from outside."""
    base = jobs.job(name)
    finding = RuleResult(
        code=text,
        title=text,
        state="fires",
        reason=text,
        evidence=[Evidence(label=text, value=text)],
        remedy=text,
        related=[Related(code=text, how=how, why=text) for how in ("not_together", "same_time")],  # type: ignore[arg-type]
    )
    states = ("passes", "skipped", "not_applicable", "error")
    made = replace(
        base,
        quality=[Quality(code=text, message=text, remedy=text)],
        capabilities=[CapabilityRow(input=0, name=text, available=False, reason=text, remedy=text)],
        rules=[
            *(rule for rule in base.rules if rule.state == "fires"),
            finding,
            *(replace(finding, state=state) for state in states),
        ],
    )
    return replace(with_text(made, text), schema_version=made.schema_version)


def hostile_choices(text: str) -> Diagnosis:
    """One with advice in every dialect and sets of changes that can be chosen."""
    return hostile(text, "data")
