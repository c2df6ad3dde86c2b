"""Advice that depends on settings that nobody knows: given "if it is not set already", never left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import proposed
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import at_most
from perfdoc.rules.engine.rule import Rule, Verdict

NOT_KNOWN = "upper bound: nothing of it is left if this is set already, which is not known"


def if_unset(rule: Rule, case: Case, advice: Sequence[Advice]) -> Verdict | None:
    """What a rule that fires would say more if nobody had set the unknown switches; None for nothing.

    advice: what it advises by what is known; what it found and how bad that is stay. Only pieces that come
    with a switch whose setting is unknown are added, and of these none that the known settings forbid.
    """
    assumed = case.if_unset
    then = rule.evaluate(assumed) if assumed is not case else None
    if then is None or then.state != "fires":
        return None
    mine = {piece.knob for piece in advice}
    both = proposed(case, [*advice, *(piece for piece in then.advice if piece.knob not in mine)])
    added = [p for p in both if p.knob not in mine and not p.forbidden]
    unknown = [p.knob for p in added if p.knob in assumed.assumed]
    if not unknown:
        return None
    words = " ".join(w for w in (then.remedy, _ask(case, unknown)) if w)
    return replace(then, advice=list(_conditional(added, unknown)), remedy=words)


def _conditional(pieces: Sequence[Advice], unknown: Sequence[str]) -> Iterator[Advice]:
    """Each with the switch that it goes with, its own or the one before. Its gain is a bound: none of it is
    left where the switch is set. What was replayed keeps its own row."""
    switch = unknown[0]
    for piece in pieces:
        switch = piece.knob if piece.knob in unknown else switch
        most = at_most(piece.gain, NOT_KNOWN)
        gain = None if most is None else replace(most, key="")
        yield replace(piece, if_unset=[switch], gain=gain)


def _ask(case: Case, knobs: Sequence[str]) -> str:
    how = "see what the job sets" if case.configuration.values else "--config FILE tells"
    return f"Not known, whether set already: {', '.join(dict.fromkeys(knobs))} ({how})."
