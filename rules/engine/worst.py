"""The worst instance in the trace that a rule points at."""

from collections.abc import Sequence

from perfdoc.analyzers.pipeline.layout import find_pipelines
from perfdoc.results.rules import WorstInstance
from perfdoc.results.waits import Straggler
from perfdoc.rules.engine.case import Case


def worst_instance(case: Case, *keys: str, label: str | None = None) -> WorstInstance | None:
    """The costliest instance of these kinds over all ranks, or on the rank with this label; None if none is
    known."""
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
    return everyone.of_device(-position, instance)


def worst_of_time(case: Case, time: Sequence[str]) -> WorstInstance | None:
    """The costliest instance of a rule's `Meta.time`; None for waits, which have an instance by rank only."""
    if any(name in ("pipeline.bubble", "pipeline.late_peer") for name in time):
        return bubble(case)
    exposed = (name.replace("exposed_comm.", "exposed.") for name in time)
    return worst_instance(case, *("exposed.pp" if name == "pipeline.transfer" else name for name in exposed))


def worst_exposed(case: Case, *dimensions: str) -> WorstInstance | None:
    """The communication of these dimensions with the longest exposed time."""
    return worst_instance(case, *(f"exposed.{d}" for d in dimensions))


def late_rank(case: Case, straggler: Straggler) -> WorstInstance | None:
    """The collective that a straggler joined latest; None if it was never alone in joining last."""
    everyone, at = case.together, case.job.latest.get((straggler.name, straggler.dimension))
    names = [member.name for member in case.job.matches.members]
    if everyone is None or at is None or names.count(straggler.name) != 1:
        return None
    return everyone.late_arrival(at, names.index(straggler.name))


def bubble(case: Case) -> WorstInstance | None:
    """The longest gap between two passes, in the typical step of the timeline if there is one: the bubble
    recurs in every step, and the longest gap of all may be a pause. Else the longest exposed send/recv."""
    everyone, pp = case.together, case.job.pipeline.pp
    if everyone is None:
        return None
    pipelines = []
    if pp is not None and pp > 1:
        ranks = [part.pipeline for part in everyone.parts]
        pipelines = find_pipelines(ranks, case.job.facts, pp)[0]
    alone = [(i,) for i, part in enumerate(everyone.parts) if part.pipeline.state == "measured"]
    return everyone.pass_gap(pipelines or alone, case.job.timeline.step) or worst_exposed(case, "pp")
