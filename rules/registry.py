"""Finding the rules and running them: a rule is a file `pdNNN_name.py` with META and evaluate."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

import perfdoc.rules
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.rules.rule import Rule, RuleResult, Verdict

ENTRY_POINT_GROUP = "perfdoc.rules"
"""Other packages add rules by naming modules of theirs in this entry-point group."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule by code. Raises ValueError where two claim one code."""
    modules = [
        importlib.import_module(f"{perfdoc.rules.__name__}.{m.name}")
        for m in pkgutil.iter_modules(perfdoc.rules.__path__)
        if re.fullmatch(r"pd\d{3}_\w+", m.name)
    ]
    modules += [e.load() for e in entry_points(group=ENTRY_POINT_GROUP)]
    rules: dict[str, Rule] = {}
    for module in modules:
        rule = Rule(meta=module.META, evaluate=module.evaluate)
        if rule.meta.code in rules:
            raise ValueError(f"two rules claim the code {rule.meta.code}")
        rules[rule.meta.code] = rule
    return tuple(rules[code] for code in sorted(rules))


def run_rules(
    captures: Sequence[CaptureMeasurement], rules: Sequence[Rule] | None = None
) -> list[RuleResult]:
    """Apply every rule; one that throws becomes an `error` row, never a crash."""
    results = []
    for rule in all_rules() if rules is None else rules:
        try:
            verdict = rule.evaluate(captures)
        except Exception as error:  # noqa: BLE001 - a rule may be anybody's; the others must still run
            verdict = Verdict(state="error", reason=f"{type(error).__name__}: {error}")
        results.append(
            RuleResult(
                code=rule.meta.code,
                title=rule.meta.title,
                state=verdict.state,
                reason=verdict.reason,
                evidence=tuple(verdict.evidence),
                remedy=verdict.remedy,
            )
        )
    return results
