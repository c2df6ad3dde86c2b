"""Advice: how a rule makes it, and how it becomes what the job sets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfdoc.knobs.check import check, companions
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import DIALECTS, Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import Opaque, as_text, check_value, read_value
from perfdoc.knobs.writing import as_written
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice as Advice
from perfdoc.results.rules import there_for_others
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import at_most
from perfdoc.rules.engine.own_words import NOT_KNOWN, in_own_words
from perfdoc.rules.engine.rule import Rule


def advise(
    *,
    knob: str,
    to: Value,
    why: str,
    costs: str = "",
    gain: Gain | None = None,
    together: Sequence[str] = (),
    unset: Sequence[str] = (),
) -> Advice:
    """One setting to change, written in every dialect.

    knob: canonical id. why: what it does here, in a sentence. costs: its cost in memory or numerics.
    gain: of this piece. together: other knobs advised that the gain was predicted with; without one of them
    the gain is an upper bound. unset: knobs of unknown setting, if it is advice only where they are not set
    already. Raises KeyError for an unknown id.
    """
    wrong = check_value(catalogue()[knob], to)
    return Advice(
        knob=knob,
        from_value=None,
        to_value=as_text(to),
        why=why,
        costs=costs,
        dialects=in_each_dialect(knob, to),
        forbidden=f"{knob} {wrong}" if wrong else "",
        gain=gain,
        together=list(together),
        if_unset=list(unset),
    )


def in_each_dialect(knob: str, to: Value) -> dict[str, str]:
    """Dialect → what to write, without those that have no such setting."""
    written = {str(dialect): as_written(knob, to, dialect) for dialect in DIALECTS}
    return {dialect: text for dialect, text in written.items() if text}


def needing(main: Advice, first: Sequence[Advice] = (), then: Sequence[Advice] = ()) -> list[Advice]:
    """A setting between those that it is set with, what must be so before it and what belongs to it: none of
    them stays where the configuration forbids the main one, see `settle`."""
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


def settle(case: Case, advice: Sequence[Advice], before: Sequence[Advice] = ()) -> list[Advice]:
    """Every piece as the job sets it: with the present setting, in the words of its framework, with what it
    cannot be set without, and why it is forbidden, if it is. What is so already is left out.

    Pieces are checked in order, each together with the allowed ones before it (and `before`) and, if that is
    forbidden, with all that follow: a switch and what needs it may be advised together. What is only there
    for another piece, one of its `together` that does not name it in turn, goes where that one is forbidden.
    """
    configuration = case.configuration.with_changes(_values(before))
    advice = _with_companions(configuration, advice)
    stated: list[Advice] = []
    spelled: list[list[Advice]] = []
    for piece in advice:
        known, now = case.setting(piece.knob)
        piece = replace(piece, from_value=as_text(now) if known else None)
        words = [piece]
        if not piece.forbidden:
            to = value_of(piece)
            words = [] if known and now == to else in_own_words(case, piece, to)
        if words:
            spelled.append(words)
            stated.append(replace(piece, forbidden=words[0].forbidden))
    reasons = _why_forbidden(configuration, stated)
    values = _values([piece for piece, why in zip(stated, reasons, strict=True) if why == ""])
    so_already = {piece.knob for piece in advice} - {piece.knob for piece in stated}
    settled: list[Advice] = []
    for piece, (main, *others), why in zip(stated, spelled, reasons, strict=True):
        if why is None:
            continue
        # Where the framework's setting does another thing, nothing belongs to it but its own.
        beside = [] if main.why != piece.why else [k for k in piece.together if k not in so_already]
        if not why:
            beside += _needed(configuration, values, [piece.knob, *beside])
        together = list(dict.fromkeys([*beside, *(other.knob for other in others)]))
        settled.append(replace(main, forbidden=why, together=together))
        settled += [] if why else others
    return settled


def _with_companions(configuration: Configuration, advice: Sequence[Advice]) -> list[Advice]:
    """The advice, and behind a piece what its framework refuses it without and nobody has set: Megatron FSDP
    writes checkpoints of one format only, whatever the default is."""
    found: list[Advice] = []
    for piece in advice:
        beside = {p.knob for p in (*advice, *found)}
        changes = _values([*found, piece]) if not piece.forbidden else {}
        needed = companions(configuration, changes, piece.knob) if changes else {}
        new = {knob: words for knob, words in needed.items() if knob not in beside}
        found.append(replace(piece, together=[*piece.together, *new]) if new else piece)
        found += [advise(knob=knob, to=to, why=words) for knob, (to, words) in new.items()]
    return found


def _why_forbidden(configuration: Configuration, advice: Sequence[Advice]) -> list[str | None]:
    """What forbids each piece, empty where nothing does; None for one that is only there for a forbidden
    one."""
    reasons = _checked(configuration, advice)
    why = {piece.knob: reason for piece, reason in zip(advice, reasons, strict=True) if reason}
    mains = there_for_others(advice)
    lost = {knob for knob, of in mains.items() if of <= why.keys()}
    if not lost:
        return [*reasons]
    # Without its prerequisites a piece would be forbidden for want of them: the first reason is the one.
    of_lost = {main for knob in lost for main in mains[knob]}
    kept = [replace(p, forbidden=why[p.knob]) if p.knob in of_lost else p for p in advice]
    left = iter(_why_forbidden(configuration, [piece for piece in kept if piece.knob not in lost]))
    return [None if piece.knob in lost else next(left) for piece in advice]


def _checked(configuration: Configuration, advice: Sequence[Advice]) -> list[str]:
    reasons = []
    for at, piece in enumerate(advice):
        reason = piece.forbidden
        if not reason:
            change = {piece.knob: value_of(piece)}
            against = check(configuration, change)
            if against and not check(configuration, _values(advice[at:])):
                against = ()
            if not against:
                configuration = configuration.with_changes(change)
            reason = against[0].words if against else ""
        reasons.append(reason)
    return reasons


def _needed(configuration: Configuration, values: Mapping[str, Value], knobs: Sequence[str]) -> list[str]:
    """Which of the other values these knobs' cannot be set without."""
    if not check(configuration, {k: values[k] for k in knobs if k in values}):
        return []
    left = dict(values)
    if check(configuration, left):
        return []
    for knob in [k for k in values if k not in knobs]:
        fewer = {k: value for k, value in left.items() if k != knob}
        if not check(configuration, fewer):
            left = fewer
    return [knob for knob in left if knob not in knobs]


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


def if_unset(rule: Rule, case: Case, advice: Sequence[Advice]) -> tuple[list[Advice], str]:
    """(what a rule that fires would advise more if nobody had set the unknown switches, what to do in words);
    nothing and no words where that is no more.

    advice: what it advises by what is known; what it found and how bad that is stay. Only pieces that come
    with a switch whose setting is unknown are added, and of these none that the known settings forbid.
    """
    assumed = case.if_unset
    then = rule.evaluate(assumed) if assumed is not case else None
    if then is None or then.state != "fires":
        return [], ""
    known = {piece.knob for piece in advice}
    more = [piece for piece in then.advice if piece.knob not in known]
    switches = [piece.knob for piece in more if piece.knob in assumed.assumed]
    if not switches:
        return [], ""
    added = settle(case, list(_conditional(more, switches)), advice)
    added = [p for p in added if not p.forbidden or not p.dialects]  # the known settings forbid it
    left = {piece.knob for piece in added}
    added = [p for p in added if not p.if_unset or p.if_unset[0] in left]
    unknown = [knob for knob in switches if knob in left]
    if not unknown:
        return [], ""
    return added, " ".join(w for w in (then.remedy, _ask(case, unknown)) if w)


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
