"""Diagnoses whose strings try to be markup, code or terminal commands."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfdoc.results import CapabilityRow, Diagnosis, Evidence, Quality, Related, RuleResult
from tests.amount import some
from tests.reports.build import analysed, one_rank
from tests.reports.build_choices import with_choices
from tests.reports.build_memory import with_memory_and_replay
from tests.reports.build_worst import compared, worst_instance
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
def hostile(text: str) -> Diagnosis:
    """One rank in which every string that may come from outside is the same text. What closed sets of words
    name (causes, dimensions of the ledger) is no string from outside."""
    return _hostile(analysed(one_rank()), text)


@cache
def hostile_memory(text: str) -> Diagnosis:
    """The same with memory snapshots and a replay."""
    return _hostile(with_memory_and_replay(one_rank()), text)


@cache
def hostile_choices(text: str) -> Diagnosis:
    """The same with advice in every dialect and sets of changes that can be chosen."""
    return _hostile(with_choices(one_rank()), text)


def _hostile(base: Diagnosis, text: str) -> Diagnosis:
    finding = RuleResult(
        code=text,
        title=text,
        state="fires",
        reason=text,
        evidence=[Evidence(label=text, value=text)],
        remedy=text,
        worst=worst_instance(),
        related=[Related(code=text, how=how, why=text) for how in ("not_together", "same_time")],  # type: ignore[arg-type]
    )
    own = [rule for rule in base.rules if rule.advice]
    states = ("passes", "skipped", "not_applicable", "error")
    made = replace(
        base,
        quality=[Quality(code=text, message=text, remedy=text)],
        capabilities=[CapabilityRow(input=0, name=text, available=False, reason=text, remedy=text)],
        against=compared(),
        rules=[*own, finding, *(replace(finding, state=state) for state in states)],
    )
    return replace(with_text(made, text), schema_version=made.schema_version)
