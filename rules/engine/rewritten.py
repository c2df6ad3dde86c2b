"""A piece of advice with the job's own setting in place of Megatron's, checked against the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.values import as_text
from perfdoc.knobs.writing import as_written
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.counterpart import Beside, Own
from perfdoc.rules.engine.unknown import NOT_KNOWN
from perfdoc.rules.facts.zero import overlaps_comm, zero_stage


def rewritten(case: Case, piece: Advice, own: Own) -> list[Advice]:
    """The piece, and what is set beside it; nothing where it is so already."""
    known, now = _as_it_is(case, own.knob)
    if known and now == own.value:
        return []
    settings = replace(case.configuration, dialect=own.dialect)
    beside, against = _allowed(settings, own)
    piece = (
        instead(piece, own.why, own.costs) if own.why else replace(piece, costs=both(piece.costs, own.costs))
    )
    if own.stands_alone:
        piece = replace(piece, knob=own.knob, to_value=as_text(own.value))
    # The job's own setting may count something else than the one that the piece names.
    alike = as_text(own.value) == piece.to_value
    told, before = (known, now) if alike else case.setting(piece.knob)
    first = replace(
        piece,
        from_value=as_text(before) if told else None,
        dialects={own.dialect: as_written(own.knob, own.value, own.dialect)},
        forbidden=against,
        together=[*piece.together, *(b.knob for b in beside)],
    )
    if known and first.if_unset == [piece.knob]:
        first = replace(first, if_unset=[], gain=_certain(first.gain))
    if against:
        return [first]
    return [first, *(_beside(case, first, own.dialect, b) for b in beside)]


def instead(piece: Advice, why: str, costs: str) -> Advice:
    """What the framework's own setting does and costs, where that is not what Megatron's does."""
    return replace(piece, why=why, costs=costs, gain=None, together=[])


def _as_it_is(case: Case, knob: str) -> tuple[bool, Value]:
    """(whether it is known, what the job's own setting is): ZeRO's follow from its stage where nobody sets
    them."""
    of_zero = {"zero_overlap_comm": overlaps_comm, "zero_stage": zero_stage}.get(knob)
    found = of_zero(case.configuration) if of_zero else None
    return case.setting(knob) if found is None else (True, found)


def _allowed(settings: Configuration, own: Own) -> tuple[Sequence[Beside], str]:
    """(what is set beside it, and why the other settings forbid it): what mends a rule that it breaks comes
    with it."""
    changes = {own.knob: own.value, **{b.knob: b.value for b in own.beside}}
    against = check(settings, changes)
    if not against:
        return own.beside, ""
    rule = against[0].constraint
    fix = [Beside(knob=k, value=v, why=rule.rule) for k, v in rule.fix if k not in changes] if rule else []
    mended = not check(settings, {**changes, **{b.knob: b.value for b in fix}}) if fix else False
    return ([*own.beside, *fix], "") if mended else (own.beside, against[0].words)


def _beside(case: Case, piece: Advice, dialect: Dialect, other: Beside) -> Advice:
    known, now = case.setting(other.knob)
    return replace(
        piece,
        knob=other.knob,
        from_value=as_text(now) if known else None,
        to_value=as_text(other.value),
        why=other.why,
        costs="",
        dialects={dialect: as_written(other.knob, other.value, dialect)},
        gain=None,
        together=[],
    )


def _certain(gain: Gain | None) -> Gain | None:
    """Without the doubt whether it is set already."""
    if gain is None:
        return None
    return replace(gain, assumptions=[words for words in gain.assumptions if words != NOT_KNOWN])


def both(*costs: str) -> str:
    """Costs one after the other, without those that are empty."""
    return "; ".join(words for words in costs if words)
