"""docs/rules is made from the rules, and every piece of the guides' advice has its place there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from perfdoc.rules.advice.entries import TOPICS, entries
from perfdoc.rules.engine.pages import pages, rules_by_entry
from perfdoc.rules.engine.registry import own_rules

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_as_the_rules_are() -> None:
    written = {f.name: f.read_text(encoding="utf-8") for f in (ROOT / "docs" / "rules").glob("*.md")}
    assert written == dict(pages()), "docs/rules is stale: make docs"


def test_an_entry_is_decided_or_says_why_not() -> None:
    deciding = rules_by_entry(own_rules())
    assert set(deciding) <= set(entries())
    both = [e.id for e in entries().values() if bool(deciding.get(e.id)) == bool(e.undecided)]
    assert both == []


def test_every_rule_has_a_topic_that_pages_know() -> None:
    assert {r.meta.topic for r in own_rules()} <= set(TOPICS)


def test_every_entry_of_the_guides_is_there() -> None:
    facts = ROOT.parent / "shared" / "knowledge" / "advice.yaml"
    if not facts.exists():
        pytest.skip("shared/knowledge/advice.yaml is not beside the project")
    known = yaml.safe_load(facts.read_text(encoding="utf-8"))["advice"]
    assert set(entries()) == {entry["id"] for entry in known}


def test_a_page_needs_no_look_into_the_source() -> None:
    """Guides by title, thresholds of other files by value; `exposed.MIN_FRAC` is 0.05."""
    made = dict(pages())
    assert [name for name, text in made.items() if "seed 0" in text or "DESIGN" in text] == []
    assert [name for name, text in made.items() if re.search(r"`\w+\.[A-Z][A-Z_]+`", text)] == []
    assert "Fires at 5 % of the window" in made["PD342.md"]
    assert "- NeMo Framework, performance tuning guide\n" in made["PD303.md"]
