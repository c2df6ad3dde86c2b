"""What a rule needs to know before it can judge: `META.needs`, which the engine holds a case against.

Needs that ask what several rules ask live beside the answer, in `rules/facts`; those of one rule in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.engine.case import Case

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a rule is not asked."""

    state: Literal["skipped", "not_applicable"]
    """skipped: something is not known. not_applicable: what the rule is about is not there."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Need:
    """One thing that must be known, or be the case, for a rule to be asked."""

    words: str
    """For the rule's page: what is needed."""
    missing: Callable[[Case], Missing | None]
    """None where the case has it."""


def skipped(reason: str) -> Missing:
    """Something is not known."""
    return Missing(state="skipped", reason=reason)


def not_applicable(reason: str) -> Missing:
    """What the rule is about is not there."""
    return Missing(state="not_applicable", reason=reason)


def first_missing(case: Case, needs: Iterable[Need]) -> Missing | None:
    """What the first need that the case does not meet says; None where it meets all of them."""
    return next((found for need in needs if (found := need.missing(case)) is not None), None)


def needs_in_words(needs: Iterable[Need]) -> list[str]:
    """For the rule's page, each once: some are asked for twice, as unknown and as not there."""
    return list(dict.fromkeys(need.words for need in needs))


def given(value: T | None) -> T:
    """A value that the rule's needs have established."""
    assert value is not None, "a rule uses what its META.needs do not establish"
    return value


def known(words: str, *of: Callable[[Case], object], reason: str = "") -> Need:
    """Values that are not None. reason: "… is not known" if not given."""
    why = reason or f"{words} is not known"
    return Need(words=words, missing=lambda case: skipped(why) if any(f(case) is None for f in of) else None)


def applies(words: str, holds: Callable[[Case], bool], otherwise: str) -> Need:
    """Something that must be the case, else the rule is not about this job."""
    return Need(words=words, missing=lambda case: None if holds(case) else not_applicable(otherwise))


def several(words: str, of: Callable[[Case], int | None], *, one: str, unknown: str = "") -> Need:
    """More than one of something. one: the reason where it is one. unknown: where that is not known; left
    empty, only what is known to be one is in the way."""

    def missing(case: Case) -> Missing | None:
        count = of(case)
        if count is None and unknown:
            return skipped(unknown)
        return not_applicable(one) if count == 1 else None

    return Need(words=words, missing=missing)


def setting(*knobs: str) -> Need:
    """Settings that are known, whatever they are."""

    def missing(case: Case) -> Missing | None:
        unknown = [knob for knob in knobs if not case.setting(knob)[0]]
        return skipped(_unknown(unknown)) if unknown else None

    return Need(words=" and ".join(f"`{knob}`" for knob in knobs), missing=missing)


def _unknown(knobs: Sequence[str]) -> str:
    return f"{' and '.join(knobs)} {'is' if len(knobs) == 1 else 'are'} not known"


def capability(name: str, words: str) -> Need:
    """Something that every capture shows."""

    def missing(case: Case) -> Missing | None:
        without = (c.capabilities[name] for c in case.captures if not c.capabilities[name].available)
        return next((skipped(capability.reason) for capability in without), None)

    return Need(words=words, missing=missing)


class _Measured(Protocol):
    """A part of a measurement that may not have been possible."""

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...


def on_some_rank(words: str, of: Callable[[RankMeasurement], _Measured]) -> Need:
    """Something that was measured on one rank at least."""

    def missing(case: Case) -> Missing | None:
        found = [of(rank) for rank in case.ranks]
        if any(f.state == "measured" for f in found):
            return None
        return skipped(found[0].reason if found else "no ranks")

    return Need(words=words, missing=missing)


def over_ranks(words: str, of: Callable[[Case], _Measured]) -> Need:
    """Something that was measured by comparing ranks."""

    def missing(case: Case) -> Missing | None:
        found = of(case)
        if found.state == "measured":
            return None
        return not_applicable(found.reason or ONE_RANK) if len(case.ranks) < 2 else skipped(found.reason)

    return Need(words=words, missing=missing)


ONE_RANK = "one rank only"


GPUS = applies("GPUs", lambda case: not case.on_host, "the ranks train on the CPU")
WINDOW = known(
    "a window that is not empty", lambda case: case.share(lambda _: 0), reason="every window is empty"
)
GPU_MODEL = known(
    "GPUs of one model, whose name is known",
    lambda case: case.gpu,
    reason="which GPUs these are is not known",
)
