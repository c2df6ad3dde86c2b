"""The worst instance that a rule can point at, and what is to be seen there."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.analyzers.instances.worst import WorstInstance
from perfdoc.analyzers.pipeline.layout import find_pipelines
from perfdoc.analyzers.skew.stragglers import Straggler
from perfdoc.results.figures import brief
from perfdoc.rules.engine.case import Case


@dataclass(frozen=True, kw_only=True)
class Worst:
    """An instance of what a rule fires on."""

    instance: WorstInstance
    says: str
    """What is to be seen, in one sentence."""


def worst_instance(case: Case, *keys: str, label: str | None = None) -> Worst | None:
    """The costliest instance of any of these kinds over all ranks, or on the one of a label; None where none
    is known."""
    labels = case.job.labels
    found = [
        (instance.spot.cost_ns, -position, instance)
        for position, rank in enumerate(case.ranks)
        if label is None or (position < len(labels) and labels[position] == label)
        for instance in rank.instances
        if instance.spot.key in keys
    ]
    everyone = case.together
    if not found or everyone is None:
        return None
    _, position, instance = max(found, key=lambda f: f[:2])
    return _told(everyone.of_device(-position, instance))


def worst_exposed(case: Case, *dimensions: str) -> Worst | None:
    """The communication of some dimensions of which most was exposed."""
    return worst_instance(case, *(f"exposed.{d}" for d in dimensions))


def late_rank(case: Case, straggler: Straggler) -> Worst | None:
    """The collective to which a straggler came latest; None where it never came last alone."""
    everyone, at = case.together, straggler.worst_collective
    names = [member.name for member in case.job.matches.members]
    if everyone is None or at is None or names.count(straggler.name) != 1:
        return None
    found = everyone.late_arrival(at, names.index(straggler.name))
    return None if found is None else _told(found)


def bubble(case: Case) -> Worst | None:
    """The longest stretch between two passes, in the typical step that the timeline shows where there is one:
    the bubble comes in every step, and the longest of all may be some pause. Else the longest exposed
    message."""
    everyone, pp = case.together, case.job.pipeline.pp
    if everyone is None:
        return None
    pipelines = []
    if pp is not None and pp > 1:
        ranks = [part.pipeline for part in everyone.parts]
        pipelines = [m.positions for m in find_pipelines(ranks, case.job.facts, pp)[0]]
    alone = [(i,) for i, part in enumerate(everyone.parts) if part.pipeline.state == "measured"]
    found = everyone.pass_gap(pipelines or alone, case.job.timeline.step)
    return worst_exposed(case, "pp") if found is None else _told(found)


def _told(found: WorstInstance) -> Worst:
    return Worst(instance=found, says=_SAYS[found.key.partition(".")[0]](found))


def _length(w: WorstInstance) -> str:
    return brief(w.end_ns - w.start_ns)


def _opening(label: str) -> str:
    return label[:1].upper() + label[1:]


def _part(w: WorstInstance) -> str:
    return "all" if brief(w.cost_ns) == _length(w) else brief(w.cost_ns)


def _exposed(w: WorstInstance) -> str:
    late = f"; {w.late} came to it {brief(w.late_ns)} after this rank" if w.late else ""
    return f"{w.name} took {_length(w)}, {_part(w)} of it with no compute beside it{late}."


def _idle(w: WorstInstance) -> str:
    during = brief(w.cost_ns) if brief(w.cost_ns) == _length(w) else f"{brief(w.cost_ns)} of {_length(w)}"
    if w.key == "idle.host":
        by = f" ({w.name})" if w.name else ""
        return f"Nothing ran for {during}: the host had not launched the next work yet{by}."
    if w.key == "idle.gc":
        return f"Nothing ran for {during} while the host collected garbage."
    if w.key == "idle.data":
        return f"Nothing ran for {during} while the host waited for data ({w.name})."
    return f"Nothing ran for {during}: the next work was queued, or nothing shows what launched it."


def _copies(w: WorstInstance) -> str:
    return f"Copies took {_length(w)}, {_part(w)} of it with neither compute nor communication beside them."


def _contention(w: WorstInstance) -> str:
    return (
        f"This run took {_length(w)} beside communication, {brief(w.cost_ns)} longer than the median of the "
        "same kernel alone."
    )


def _late(w: WorstInstance) -> str:
    return (
        f"{_opening(w.label)} came to this {w.name} {brief(w.cost_ns)} after everybody else; the first had "
        f"waited for {_length(w)} by then."
    )


def _bubble(w: WorstInstance) -> str:
    return (
        f"{_opening(w.label)} ran no pass for {_length(w)} between {w.name}, the longest such time of this "
        "step."
    )


_SAYS = {
    "exposed": _exposed,
    "exposed_memcpy": _copies,
    "idle": _idle,
    "contention": _contention,
    "late": _late,
    "bubble": _bubble,
}
"""By the first part of an instance's key."""
