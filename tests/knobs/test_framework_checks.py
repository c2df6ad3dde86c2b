"""Checks of Bridge, verl, torchtitan, DeepSpeed and Accelerate, as read in their sources: a rule here says
the same of settings that break one, or there is a reason why none does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfdoc.knobs.constraints import constraints
from perfdoc.knobs.lint.text import lint

FILE = Path(__file__).with_name("framework_checks.yaml")
REASONS = {"running", "setting", "obsolete", "values", "corrected"}
MOST = 0.55
"""Of all checks of a framework, those that need the running job included: the share that are rules."""
TABLE: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
TRIED = [
    (one["framework"], check)
    for one in TABLE
    for check in one["checks"]
    if "rule" in check and "why" not in check
]


def file_of(framework: str, check: dict[str, Any]) -> tuple[str, str]:
    """(text, name) of the settings that break a check."""
    tried = check["try"]
    if not isinstance(tried, str):
        return (
            (json.dumps(tried), "ds.json") if framework == "deepspeed" else (yaml.safe_dump(tried), "a.yaml")
        )
    if tried.startswith("TrainingArguments("):
        return f"from transformers import TrainingArguments\nargs = {tried}\n", "train.py"
    if "launcher" in check:
        return f"{check['launcher']} {' '.join(tried.split())}\n", "run.sh"
    return tried + "\n", "job.args"


@pytest.mark.parametrize(
    ("framework", "check"), [pytest.param(f, c, id=f"{f} {c['place']}") for f, c in TRIED]
)
def test_what_breaks_a_check_is_told_for_its_reason(framework: str, check: dict[str, Any]) -> None:
    text, name = file_of(framework, check)
    found = lint(text, name, dialect=framework).findings  # type: ignore[arg-type]
    assert f"({check['rule']})" in " ".join(f.why for f in found), [f.why for f in found]


def least(one: dict[str, Any]) -> float:
    """torchtitan's checks are about the model, which a file only names."""
    return 0.4 if one["framework"] == "torchtitan" else MOST


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one["framework"])
def test_most_checks_of_a_framework_are_rules(one: dict[str, Any]) -> None:
    names = {constraint.name for constraint in constraints()}
    counted: Counter[str] = Counter()
    for check in one["checks"]:
        assert check.get("why") in REASONS or check["rule"] in names, check["place"]
        counted[check.get("why", "rule")] += 1
    assert counted["rule"] / counted.total() >= least(one), counted
