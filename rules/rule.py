"""What a rule is: who it is (Meta) and what it found (Verdict)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfdoc.analyzers.measure import CaptureMeasurement

State = Literal["fires", "passes", "not_applicable", "skipped", "error"]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """Identity of a rule. A code is never used again for another rule."""

    code: str
    title: str
    """Names the problem, not the fix."""
    why: str
    """What the problem costs, in a sentence or two."""
    sources: tuple[str, ...]
    """Where the advice comes from."""
    status: Literal["preview", "stable"] = "preview"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One figure that a verdict rests on, with its unit in the value."""

    label: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a rule found; a state other than `fires` and `passes` needs a reason."""

    state: State
    reason: str = ""
    evidence: Sequence[Evidence] = field(default_factory=tuple)
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """A verdict with the rule's identity."""

    code: str
    title: str
    state: State
    reason: str
    evidence: Sequence[Evidence]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule file, loaded."""

    meta: Meta
    evaluate: Callable[[Sequence[CaptureMeasurement]], Verdict]
    """Pure: measurements in, verdict out."""
