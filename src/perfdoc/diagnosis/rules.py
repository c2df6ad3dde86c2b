"""What the rules found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact that a rule rests on."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What one rule found."""

    code: str
    title: str
    state: Literal["fires", "passes", "not_applicable", "skipped", "error"]
    reason: str
    evidence: list[Evidence]
    remedy: str
    """What to do about it; empty unless the rule fires."""
