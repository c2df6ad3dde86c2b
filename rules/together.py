"""Advice of several pieces that make sense only together."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.rules.case import Case
from perfdoc.rules.knobs.check import check
from perfdoc.rules.rule import Advice


def all_or_none(case: Case, advice: Sequence[Advice]) -> list[Advice]:
    """All pieces, or none where the rest of the configuration forbids one of them: half as much tensor
    parallelism without the stages that make up for it does not fit."""
    changes = {piece.knob: piece.to for piece in advice}
    return [] if check(case.configuration, changes) else list(advice)
