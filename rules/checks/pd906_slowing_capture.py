"""Stacks, shapes, allocations and a range for every operator cost host time at every launch. Where the device
waits for the host, a part of the idle time is the profiler's, and nobody can say which."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.gain import RankMeasurement, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import cost_evidence, left_out, slowed_by

META = Meta(
    title="Capture that slows the host",
    action="Capture again with less",
    sources=("definitions",),
    topic="capture",
    needs=(GPUS, WINDOW),
    for_servers=True,
)

MIN_FRAC = 0.05
"""Of the window, idle before late launches: with less, the host is not what the step waits for."""


def evaluate(case: Case) -> Verdict:
    """Fires if a capture records what slows its host and the device is late by its host for `MIN_FRAC`."""
    share, evidence = time_share(case, "idle before late launches", _slowed_ns)
    found = slowed_by(case)
    if not found or share < MIN_FRAC:
        return passes(evidence)
    by_hand = "no emit_nvtx: a few ranges by hand"
    less = [by_hand if option == "emit_nvtx" else f"{option}=False" for option in left_out(case)]
    without = ", ".join(less)
    return fires(
        reason=f"it records {', '.join(found)}; {per_cent(share)} of the window is idle before late launches",
        action=f"Capture again with less: {without}" if less else "",
        evidence=[*evidence, *cost_evidence(case)],
        remedy="Compare the step times before anything is changed for the host's sake.",
        verify="Analyse the new capture: what idle.host lost was the profiler's.",
        false_alarm="A step that is as long without the profiler.",
    )


def _slowed_ns(rank: RankMeasurement) -> int:
    """What is allocated takes as long without."""
    return rank.ledger.idle.host - (rank.host.idle_split.allocation_ns or 0)
