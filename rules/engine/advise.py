"""Holding advice against the rest of the configuration: no value that it forbids is ever proposed."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.knobs.check import check
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Advice, Proposed


def proposed(case: Case, advice: Sequence[Advice]) -> list[Proposed]:
    """Every piece of advice with what speaks against it; what is set so already is left out.

    Pieces are judged one after another, each with those before it that are allowed, and where it is forbidden
    so, with all that follow: a switch and what needs it may be advised together.
    """
    found = []
    configuration = case.configuration
    for at, piece in enumerate(advice):
        known, now = case.setting(piece.knob)
        if known and now == piece.to:
            continue
        against = check(configuration, {piece.knob: piece.to})
        if against and not check(configuration, {p.knob: p.to for p in advice[at:]}):
            against = ()
        if not against:
            configuration = configuration.with_changes({piece.knob: piece.to})
        found.append(
            Proposed(
                knob=piece.knob,
                known=known,
                now=now,
                to=piece.to,
                why=piece.why,
                costs=piece.costs,
                forbidden=against[0].words if against else "",
                gain=piece.gain,
                together=tuple(piece.together),
            )
        )
    return found


def all_or_none(case: Case, advice: Sequence[Advice]) -> list[Advice]:
    """All pieces, or none where the rest of the configuration forbids one of them: half as much tensor
    parallelism without the stages that make up for it does not fit."""
    changes = {piece.knob: piece.to for piece in advice}
    return [] if check(case.configuration, changes) else list(advice)
