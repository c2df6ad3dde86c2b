"""The inputs that a rule needs: `META.needs`, which the engine checks before it calls the rule.

Needs that several rules share are in `rules/facts`, next to the fact; those of one rule in its file.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.profiling.gpus import gpu_family
from perfdoc.records import dataclass
from perfdoc.results.quality import in_words
from perfdoc.rules.engine.case import Case

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Why a rule is not evaluated."""

    state: Literal["skipped", "not_applicable"]
    """skipped: an input is missing. not_applicable: the job does not have what the rule is about."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Need:
    """One condition for a rule to be evaluated: an input that is known, or a property of the job."""

    words: str
    """For the rule's page: what is needed."""
    missing: Callable[[Case], Missing | None]
    """None if the case meets it."""


def skipped(reason: str) -> Missing:
    """An input is missing."""
    return Missing(state="skipped", reason=reason)


def not_applicable(reason: str) -> Missing:
    """The job does not have what the rule is about."""
    return Missing(state="not_applicable", reason=reason)


def first_missing(case: Case, needs: Iterable[Need]) -> Missing | None:
    """The first need that the case does not meet; None if it meets all.

    What was given and contradicts the captures is missing for that reason, not for want of a configuration.
    """
    for need in needs:
        if (found := need.missing(case)) is not None:
            contradicts = (
                found.state == "skipped" and case.as_given is not None and need.missing(case.as_given) is None
            )
            if contradicts:
                return skipped(f"the settings contradict the capture: {in_words(case.contradicted)}")
            return found
    return None


def needs_in_words(needs: Iterable[Need]) -> list[str]:
    """For the rule's page, each once: one input may have two needs, known and applicable."""
    return list(dict.fromkeys(need.words for need in needs))


def given(value: T | None) -> T:
    """A value that the rule's needs guarantee."""
    assert value is not None, "a rule reads what its META.needs do not guarantee"
    return value


def known(words: str, *of: Callable[[Case], object], reason: str | Callable[[Case], str] = "") -> Need:
    """Values that are not None. reason: "… is not known" if not given."""

    def missing(case: Case) -> Missing | None:
        if all(f(case) is not None for f in of):
            return None
        return skipped(reason(case) if callable(reason) else reason or f"{words} is not known")

    return Need(words=words, missing=missing)


def to_give(case: Case, *knobs: str) -> str:
    """What to give for settings that are not known: the configuration, or what it lacks if it was given."""
    lacking = [knob for knob in knobs if not case.setting(knob)[0]]
    if not case.configuration.values:
        return "give the job's configuration (--config FILE)"
    return f"add {', '.join(lacking)} to what was given" if lacking else "see what else the job sets"


def applies(words: str, holds: Callable[[Case], bool], otherwise: str) -> Need:
    """A property that the job must have; without it the rule does not apply."""
    return Need(words=words, missing=lambda case: None if holds(case) else not_applicable(otherwise))


def several(words: str, of: Callable[[Case], int | None], *, one: str, unknown: str = "") -> Need:
    """A count above 1. one: the reason if it is 1. unknown: the reason if it is unknown; if empty, an unknown
    count meets the need."""

    def missing(case: Case) -> Missing | None:
        count = of(case)
        if count is None and unknown:
            return skipped(unknown)
        return not_applicable(one) if count == 1 else None

    return Need(words=words, missing=missing)


def setting(*knobs: str) -> Need:
    """Settings that are known, with any value."""

    def missing(case: Case) -> Missing | None:
        unknown = [knob for knob in knobs if not case.setting(knob)[0]]
        return skipped(_unknown(unknown)) if unknown else None

    return Need(words=" and ".join(f"`{knob}`" for knob in knobs), missing=missing)


def _unknown(knobs: Sequence[str]) -> str:
    return f"{' and '.join(knobs)} {'is' if len(knobs) == 1 else 'are'} not known"


def capability(name: str, words: str) -> Need:
    """Data that every capture holds."""

    def missing(case: Case) -> Missing | None:
        without = (c.capabilities[name] for c in case.captures if not c.capabilities[name].available)
        return next((skipped(capability.reason) for capability in without), None)

    return Need(words=words, missing=missing)


class _Measured(Protocol):
    """A part of a measurement, or why it is missing."""

    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...


def on_some_rank(words: str, of: Callable[[RankMeasurement], _Measured]) -> Need:
    """A measurement of at least one rank."""

    def missing(case: Case) -> Missing | None:
        found = [of(rank) for rank in case.ranks]
        if any(f.state == "measured" for f in found):
            return None
        return skipped(found[0].reason if found else no_trace(case))

    return Need(words=words, missing=missing)


def over_ranks(words: str, of: Callable[[Case], _Measured]) -> Need:
    """A measurement that compares ranks."""

    def missing(case: Case) -> Missing | None:
        found = of(case)
        if found.state == "measured":
            return None
        if why := no_trace(case):
            return skipped(why)
        if len(case.ranks) >= 2:
            return skipped(found.reason)
        if not case.job.whole:
            return skipped("a capture was left out, and one rank is left")
        return not_applicable(found.reason or ONE_RANK)

    return Need(words=words, missing=missing)


ONE_RANK = "one rank only"


GPUS = applies("GPUs", lambda case: not case.on_host, "the ranks train on the CPU")


def _not_all_work(case: Case) -> Missing | None:
    why = next((r.events.work_missing for r in case.ranks if r.events.work_missing), "")
    return skipped(why) if why else None


ALL_WORK = Need(words="all that the devices ran", missing=_not_all_work)
"""Of a subsampled file no share of the window is known."""


def no_trace(case: Case) -> str:
    """Why what a trace shows is missing: a memory snapshot alone was given. Empty with a trace."""
    return "" if case.ranks else "no trace was given"


def _empty(case: Case) -> Missing | None:
    if case.share(lambda _: 0) is not None:
        return None
    return skipped(no_trace(case) or "every window is empty")


def _gpu_unknown(case: Case) -> Missing | None:
    if case.gpu is not None:
        return None
    families = {gpu_family(r.device.gpu_name) for r in case.ranks}
    if len(families) > 1:
        return skipped("the ranks have GPUs of several models, or some are not known")
    family = next(iter(families), None)
    if family is not None:
        return not_applicable(f"written for NVIDIA's GPUs from Ampere on; these are {family.architecture}")
    return skipped(no_trace(case) or "the GPU model is not known")


WINDOW = Need(words="a window that is not empty", missing=_empty)
GPU_MODEL = Need(words="GPUs of one known model", missing=_gpu_unknown)
