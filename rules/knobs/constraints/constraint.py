"""One rule that ties settings together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from perfdoc.rules.knobs.configuration import View
from perfdoc.rules.knobs.knob import Dialect, Value

Kind = Literal["forbidden", "ineffective", "inadvisable"]
"""`forbidden`: refused at start-up, or silently wrong. `ineffective`: changes nothing. `inadvisable`: works,
and costs something."""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A Python function of a configuration, with its words. No string of a file is ever evaluated."""

    name: str
    """Stable, for people who look it up or leave it out."""
    subject: str
    """The knob that is to blame."""
    kind: Kind
    broken: Callable[[View], bool]
    """True where the rule is broken. Raises Undecided where a setting that it needs is unknown."""
    rule: str
    """The rule in words."""
    fix: tuple[tuple[str, Value], ...] = ()
    """Settings that mend it; empty where that is the user's to decide."""
    needs_companion: bool = False
    """The subject is useless without another setting that is off by default, so that it is worth a note even
    where a recipe may have set it."""
    dialects: tuple[Dialect, ...] = ()
    """Where it holds; everywhere if empty."""
