"""docs/rules is made from the rules, and every piece of the guides' advice has its place there."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from perfdoc.compare.verify.advised import WORK_OF_A_STEP, advised
from perfdoc.results import Diagnosis
from perfdoc.rules.advice.entries import TOPICS, entries
from perfdoc.rules.engine.advisable import advisable
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.pages import in_words, pages, rules_by_entry, with_unit
from perfdoc.rules.engine.registry import own_rules
from tests.rules.cases import result
from tests.rules.examples import Planting, examples, recorded

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = json.loads((ROOT / "docs" / "rules" / "examples.json").read_text(encoding="utf-8"))


def test_every_rule_has_an_example() -> None:
    assert set(examples()) == set(EXAMPLES) == {r.meta.code for r in own_rules()}, "make docs"


@pytest.fixture(scope="module")
def made() -> Mapping[str, str]:
    """The pages as they are to be."""
    return pages(EXAMPLES)


def test_the_pages_are_as_the_rules_are(made: Mapping[str, str]) -> None:
    written = {f.name: f.read_text(encoding="utf-8") for f in (ROOT / "docs" / "rules").glob("*.md")}
    assert written == dict(made), "docs/rules is stale: make docs"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Planting], Case]:
    """The case of an example, made once for all rules that it is an example of."""
    return cache(lambda planting: planting(tmp_path_factory.mktemp("example")))


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_an_example_fires_as_its_page_says(code: str, planted: Callable[[Planting], Case]) -> None:
    one = examples()[code]
    case = planted(one.case)
    found = result(code, case)
    assert found.state == "fires", found.reason
    assert recorded(one, found) == EXAMPLES[code], "docs/rules is stale: make docs"
    if found.advice:  # `perfdoc verify --apply` makes all that is allowed and leaves a step's work as it is
        diagnosis = cast(Diagnosis, SimpleNamespace(rules=[found]))
        made = advised(diagnosis, [code], (), case.configuration).changes
        allowed = {piece.knob for piece in found.advice if not piece.forbidden}
        assert made.keys() == allowed - WORK_OF_A_STEP


def test_pages_say_what_to_set_how_to_verify_and_when_not_to_believe(made: Mapping[str, str]) -> None:
    for code in EXAMPLES:
        text = made[f"{code}.md"]
        for heading in ("Example", "What to set", "How to verify", "When it is a false alarm"):
            assert f"## {heading}\n" in text, (code, heading)
    row = next(line for line in made["PD202.md"].splitlines() if line.startswith("| `manual_gc` |"))
    assert ("`--manual-gc`" in row, "TrainingConfig" in row or "train.manual_gc" in row) == (True, True)


def test_thresholds_have_words_and_units(made: Mapping[str, str]) -> None:
    for name, value, words, shown in (
        ("MIN_FRAC", 0.005, "minimum share", "0.5 %"),
        ("MIN_BYTES", 4 << 30, "minimum", "4 GiB"),
        ("MIN_SPEED_UP_RATIO", 1.2, "minimum speed up", "1.2 times"),
        ("MAX_PARAMETERS", 20_000_000_000, "maximum parameters", "20,000,000,000 parameters"),
        ("WAIT_NS", 1_500, "wait", "1.500 µs"),
    ):
        assert (in_words(name), with_unit(name, value)) == (words, shown)
    raw = re.compile(r"^\| `?[A-Z][A-Z_]+`? \|", re.MULTILINE)
    sections = {name: text.partition("## Thresholds")[2] for name, text in made.items()}
    assert [name for name, text in sections.items() if raw.search(text)] == []


def test_knobs_are_found_where_a_rule_names_them() -> None:
    """By a constant, by a pattern, in a table, and in functions of rules/facts that it calls."""
    found = {rule.meta.code: advisable(rule) for rule in own_rules()}
    assert found["PD202"] == ["manual_gc", "manual_gc_interval", "manual_gc_interval_val"]
    assert found["PD110"] == ["nvte_fwd_layernorm_sm_margin", "nvte_bwd_layernorm_sm_margin"]
    assert "persist_layer_norm" in found["PD404"]
    assert "num_layers_in_first_pipeline_stage" in found["PD305"]
    assert set(found["PD303"]) == {
        "moe_router_load_balancing_type",
        "moe_aux_loss_coeff",
        "moe_expert_capacity_factor",
    }
    assert found["PD901"] == []


def test_an_entry_is_decided_or_says_why_not() -> None:
    deciding = rules_by_entry(own_rules())
    assert set(deciding) <= set(entries())
    both = [e.id for e in entries().values() if bool(deciding.get(e.id)) == bool(e.undecided)]
    assert both == []


def test_what_is_decided_in_part_says_what_lacks(made: Mapping[str, str]) -> None:
    """In the coverage and on the page of each rule that decides it."""
    deciding = rules_by_entry(own_rules())
    partly = [e for e in entries().values() if e.lacks]
    assert [e.id for e in partly if e.undecided or not deciding.get(e.id)] == []
    rows = made["coverage.md"].splitlines()
    for entry in partly:
        (row,) = [r for r in rows if r.startswith(f"| `{entry.id}` |")]
        shown = [row, *(made[f"{code}.md"] for code in deciding[entry.id])]
        assert [text for text in shown if f"In part: {entry.lacks}" not in text] == [], entry.id
    counts = re.search(
        r"(\d+) of (\d+) entries .*: (\d+) as the guide says, (\d+) in part", made["coverage.md"]
    )
    assert counts is not None
    whole = len(deciding) - len(partly)
    assert [int(n) for n in counts.groups()] == [len(deciding), len(entries()), whole, len(partly)]


def test_every_rule_has_a_topic_that_pages_know() -> None:
    assert {r.meta.topic for r in own_rules()} <= set(TOPICS)


def test_every_entry_of_the_guides_is_there() -> None:
    facts = ROOT.parent / "shared" / "knowledge" / "advice.yaml"
    if not facts.exists():
        pytest.skip("shared/knowledge/advice.yaml is not beside the project")
    known = yaml.load(facts.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)["advice"]
    assert set(entries()) == {entry["id"] for entry in known}


def test_a_page_needs_no_look_into_the_source(made: Mapping[str, str]) -> None:
    """Guides by title, thresholds of other files by value; `exposed.MIN_FRAC` is 0.05."""
    assert [name for name, text in made.items() if "seed 0" in text or "DESIGN" in text] == []
    assert [name for name, text in made.items() if re.search(r"`\w+\.[A-Z][A-Z_]+`", text)] == []
    assert "Fires at 5 % of the window" in made["PD342.md"]
    assert "- NeMo Framework, performance tuning guide\n" in made["PD303.md"]
