"""Advice: how a rule makes it, and how it is checked against the rest of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import DIALECTS, Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import Opaque, as_text, check_value, read_value
from perfdoc.knobs.writing import as_written
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.case import Case


def advise(
    *,
    knob: str,
    to: Value,
    why: str,
    costs: str = "",
    gain: Gain | None = None,
    together: Sequence[str] = (),
) -> Advice:
    """One setting to change, written in every dialect.

    knob: canonical id. why: what it does here, in a sentence. costs: its cost in memory or numerics.
    gain: of this piece. together: other knobs advised that the gain was predicted with; without one of them
    the gain is an upper bound. Raises KeyError for an unknown id.
    """
    wrong = check_value(catalogue()[knob], to)
    snippets = {dialect: as_written(knob, to, dialect) for dialect in DIALECTS}
    return Advice(
        knob=knob,
        from_value=None,
        to_value=as_text(to),
        why=why,
        costs=costs,
        dialects={dialect: text for dialect, text in snippets.items() if text},
        forbidden=f"{knob} {wrong}" if wrong else "",
        gain=gain,
        together=list(together),
    )


def value_of(piece: Advice) -> Value:
    """What a piece sets, typed: the catalogue reads the text as it would in a file.

    Raises ValueError for what it cannot read.
    """
    knob = catalogue().get(piece.knob)
    value = None if knob is None else read_value(knob, piece.to_value)
    if knob is None or isinstance(value, Opaque):
        raise ValueError("is not a setting in the catalogue")
    return value


def proposed(case: Case, advice: Sequence[Advice]) -> list[Advice]:
    """Every piece of advice with the current setting and the constraint that forbids it, if any; settings
    that already have the advised value are left out.

    Pieces are checked in order, each together with the allowed ones before it and, if that is forbidden,
    with all that follow: a switch and what needs it may be advised together.
    """
    found = []
    configuration = case.configuration
    for at, piece in enumerate(advice):
        known, now = case.setting(piece.knob)
        said = as_text(now) if known else None
        if piece.forbidden:
            found.append(replace(piece, from_value=said))
            continue
        to = value_of(piece)
        if known and now == to:
            continue
        against = check(configuration, {piece.knob: to})
        if against and not check(configuration, _values(advice[at:])):
            against = ()
        if not against:
            configuration = configuration.with_changes({piece.knob: to})
        found.append(replace(piece, from_value=said, forbidden=against[0].words if against else ""))
    return found


def all_or_none(case: Case, advice: Sequence[Advice]) -> list[Advice]:
    """All pieces, or none if the rest of the configuration forbids one of them: half the tensor parallelism
    without the additional stages does not fit."""
    wrong = any(piece.forbidden for piece in advice)
    return [] if wrong or check(case.configuration, _values(advice)) else list(advice)


def _values(advice: Sequence[Advice]) -> dict[str, Value]:
    return {piece.knob: value_of(piece) for piece in advice if not piece.forbidden}
