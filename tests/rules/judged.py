"""What rules say of a case, alone."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.registry import judge
from perfdoc.rules.engine.rule import Case, Rule


def run_rules(case: Case, rules: Sequence[Rule] | None = None) -> list[RuleResult]:
    """The results of all rules, or of these."""
    return judge(case, rules).results
