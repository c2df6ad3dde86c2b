"""Advice: how a rule makes it, and how it is checked against the rest of the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import DIALECTS, Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import Opaque, as_text, check_value, read_value
from perfdoc.knobs.writing import as_written
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, there_for_others
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


def needing(main: Advice, first: Sequence[Advice] = (), then: Sequence[Advice] = ()) -> list[Advice]:
    """A setting between those that it is set with, what must be so before it and what belongs to it: none of
    them stays where the configuration forbids the main one, see `proposed`."""
    beside = [piece.knob for piece in (*first, *then)]
    return [*first, replace(main, together=list(dict.fromkeys([*main.together, *beside]))), *then]


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
    with all that follow: a switch and what needs it may be advised together. What is only there for another
    piece, one of its `together` that does not name it in turn, goes where that one is forbidden.
    """
    found = _checked(case, advice)
    why = {piece.knob: piece.forbidden for piece in found if piece.forbidden}
    mains = there_for_others(advice)
    lost = {knob for knob, of in mains.items() if of <= why.keys()}
    if not lost:
        return _complete(case, advice, found)
    kept = [piece for piece in advice if piece.knob not in lost]
    # Without its prerequisites a piece would be forbidden for want of them: the first reason is the one.
    of_lost = {main for knob in lost for main in mains[knob]}
    return proposed(case, [replace(p, forbidden=why[p.knob]) if p.knob in of_lost else p for p in kept])


def _complete(case: Case, advice: Sequence[Advice], found: Sequence[Advice]) -> list[Advice]:
    """Each allowed piece names those without which the configuration forbids it, and none that is so
    already."""
    values = _values(found)
    so_already = {piece.knob for piece in advice} - {piece.knob for piece in found}
    named = []
    for piece in found:
        beside = [knob for knob in piece.together if knob not in so_already]
        if not piece.forbidden:
            beside += _needed(case, values, [piece.knob, *beside])
        named.append(replace(piece, together=beside))
    return named


def _needed(case: Case, values: Mapping[str, Value], knobs: Sequence[str]) -> list[str]:
    """Which of the other values these knobs' cannot be set without."""
    if not check(case.configuration, {k: values[k] for k in knobs if k in values}):
        return []
    left = dict(values)
    if check(case.configuration, left):
        return []
    for knob in [k for k in values if k not in knobs]:
        fewer = {k: value for k, value in left.items() if k != knob}
        if not check(case.configuration, fewer):
            left = fewer
    return [knob for knob in left if knob not in knobs]


def _checked(case: Case, advice: Sequence[Advice]) -> list[Advice]:
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
    without the additional stages does not fit. Each names the others, but for what is only there for one."""
    if any(piece.forbidden for piece in advice) or check(case.configuration, _values(advice)):
        return []
    beside = there_for_others(advice)
    return [
        piece
        if piece.knob in beside
        else replace(piece, together=[other.knob for other in advice if other.knob != piece.knob])
        for piece in advice
    ]


def _values(advice: Sequence[Advice]) -> dict[str, Value]:
    return {piece.knob: value_of(piece) for piece in advice if not piece.forbidden}
