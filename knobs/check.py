"""Which rules a configuration breaks, and whether it may be changed in some way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from perfdoc.knobs.configuration import DERIVED_FROM, Configuration, Undecided, View
from perfdoc.knobs.constraints import Constraint, constraints
from perfdoc.knobs.knob import Value, numbers
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import check_value
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A rule that a configuration breaks."""

    constraint: Constraint | None
    """None where the value itself is wrong."""
    knob: str
    words: str
    read: frozenset[str] = frozenset()
    """Settings that decided it."""
    assumed: frozenset[str] = frozenset()
    """Those of them that are defaults."""


def violations(configuration: Configuration) -> tuple[Violation, ...]:
    """Every rule that the settings break, without values of their own that are wrong.

    A rule whose settings are not all known is not broken.
    """
    return tuple(found for c in constraints() if (found := evaluate(c, configuration)) is not None)


def check(configuration: Configuration, changes: Mapping[str, Value]) -> tuple[Violation, ...]:
    """What speaks against making `changes` to a configuration; empty where nothing does.

    A change is refused for a value of the wrong type or range, and for every rule that holds before and is
    broken after, or that is broken after and reads a changed setting. Raises ValueError for an unknown id.

    >>> check(Configuration(values={"tensor_model_parallel_size": 1}), {"sequence_parallel": True})[0].knob
    'sequence_parallel'
    """
    changed = configuration.with_changes(changes)
    wrong = [
        Violation(constraint=None, knob=name, words=f"{name} {words}")
        for name, value in changes.items()
        if (words := check_value(catalogue()[name], value))
    ]
    if wrong:
        return tuple(wrong)
    found = (evaluate(c, changed) for c in constraints() if not may_read(c).isdisjoint(changes))
    return tuple(v for v in found if v is not None and v.read & changes.keys())


def evaluate(
    constraint: Constraint, configuration: Configuration, *, assume_defaults: bool = False
) -> Violation | None:
    """One rule; None where it holds, does not apply or cannot be decided."""
    if constraint.dialects and configuration.dialect not in constraint.dialects:
        return None
    for dialect, version in constraint.until:
        last = numbers(version)
        if dialect == configuration.dialect and numbers(configuration.version)[: len(last)] > last:
            return None
    view = View(configuration, assume_defaults=assume_defaults)
    try:
        if not constraint.broken(view):
            return None
    except (Undecided, ValueError, TypeError, ArithmeticError):  # values that no reader lets pass
        return None
    given = view.read - view.assumed
    if not given or (
        constraint.kind == "ineffective" and _means_nothing(constraint.subject, view, configuration)
    ):
        return None
    return Violation(
        constraint=constraint,
        knob=constraint.subject,
        words=constraint.rule,
        read=frozenset(view.read),
        assumed=frozenset(view.assumed),
    )


def companions(
    configuration: Configuration, changes: Mapping[str, Value], changed: str
) -> Mapping[str, tuple[Value, str]]:
    """What a change needs beside it, with the rule that says so: settings that nobody has made, whose default
    the framework refuses with it; or that a rule makes along with its subject."""
    found: dict[str, tuple[Value, str]] = {}
    after = configuration.with_changes(changes)
    for constraint in constraints():
        if constraint.kind != "forbidden" or constraint.gpu_decides or constraint.severity:
            continue
        if not constraint.fix or changed not in may_read(constraint):
            continue
        broken = evaluate(constraint, after, assume_defaults=True)
        names = {name for name, _ in constraint.fix}
        if broken is None or names & changes.keys():
            continue
        made = {*configuration.values, *configuration.unknown}
        if any(changed in DERIVED_FROM.get(name, ()) for name in names):
            continue  # it would turn off what follows from the change
        if names & made and not (constraint.along and constraint.subject == changed):
            continue
        if any(catalogue()[name].spelled("env") for name in names) and not constraint.along:
            continue  # others than the file may have it
        mended = evaluate(constraint, after.with_changes(dict(constraint.fix)), assume_defaults=True)
        if mended is None:
            found.update({name: (value, constraint.rule) for name, value in constraint.fix})
    return found


def _means_nothing(subject: str, view: View, configuration: Configuration) -> bool:
    """Whether nobody set the knob that has no effect, or only to what it is by default anyway."""
    if subject not in view.read - view.assumed:
        return True
    has_default, default = catalogue()[subject].default(configuration.dialect, configuration.version)
    return has_default and subject in configuration.values and configuration.values[subject] == default


@cache
def may_read(constraint: Constraint) -> frozenset[str]:
    """Every setting that may decide a rule: those in its code, and what they may follow from."""
    named = constraint.knobs
    return named.union(*(DERIVED_FROM.get(name, frozenset()) for name in named))


def constraints_of(name: str) -> Iterable[Constraint]:
    """The rules that a knob takes part in; those that blame it come first."""
    return sorted((c for c in constraints() if name in c.knobs), key=lambda c: c.subject != name)
