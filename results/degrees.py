"""How a job is spread over its ranks: the degree of each kind of parallelism, and how it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from perfdoc.records import dataclass

Strength = Literal["named", "counted", "derived", "pattern", "given", "unknown"]
"""named: a process group or a function of the program says it. counted: ranks were counted. derived: no other
number is left. pattern: communication of this form is of nothing else. given: by the user alone."""
STRENGTHS: Final[tuple[Strength, ...]] = ("named", "counted", "derived", "pattern", "given", "unknown")
"""Strongest first."""
DegreeName = Literal["world_size", "tp", "cp", "ep", "dp", "pp"]


@dataclass(frozen=True, kw_only=True)
class Degree:
    """Ranks of the job, or of one kind of parallelism."""

    name: DegreeName
    ranks: int | None
    """None unknown."""
    strength: Strength
    evidence: list[str]
    """What says so, strongest first; of an unknown one what is known of it."""
    contradicted_by: list[str]
    """What in the captures or in what was given says another number."""


def degree(found: Sequence[Degree], name: DegreeName) -> Degree | None:
    """One of them; None where it was not looked for."""
    return next((d for d in found if d.name == name), None)
