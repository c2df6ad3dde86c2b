"""What rules about pipelines have in common: the bubble by formula and by measurement."""

from __future__ import annotations

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, applies, skipped
from perfdoc.rules.facts.degrees import PP, VPP

PER_STAGE = 4
"""Micro-batches for each stage that the guides ask for at least: the bubble is then (pp - 1) / (4 pp) of the
work at most, below a fifth of the step."""
MIN_FRAC = 0.05
"""Of the step: a smaller bubble is left alone."""


def ideal_frac(*, pp: int, vpp: int, micro_batches: int) -> float:
    """Bubble of equal stages, of the step: b / (1 + b) with b = (pp - 1) / (vpp x micro-batches).

    pp=4, vpp=1, 8 micro-batches: 3 / 11.
    """
    return (pp - 1) / (vpp * micro_batches + pp - 1)


def bubble_at(case: Case, at: Degrees) -> float:
    """Bubble of equal stages under other degrees and the same global batch, of it; 1 where that makes no
    micro-batch for each pipeline, or is not known."""
    batch, each = case.number("global_batch_size"), case.number("micro_batch_size")
    micro_batches = (batch or 0) // ((each or 1) * at.dp)
    return ideal_frac(pp=at.pp, vpp=at.vpp, micro_batches=micro_batches) if micro_batches else 1.0


def bubble_grows(case: Case, now: Degrees, then: Degrees) -> float:
    """By how much of the step: more replicas leave fewer micro-batches for each, or stages are added."""
    return bubble_at(case, then) - bubble_at(case, now)


PIPELINE = applies(
    "a pipeline degree that is not known to be 1",
    lambda case: not (case.degree(PP) == 1 or case.job.facts.pp == 1),
    "there is no pipeline",
)


def _no_bubble(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and found.bubble_frac is not None:
        return None
    return skipped(found.reason or "the bubble was not measured")


BUBBLE = Need(words="a measured bubble", missing=_no_bubble)


def overlapped_messages(case: Case) -> list[Advice]:
    """What two interleaved stages need: messages that run beside compute, where that is known to be off."""
    if not case.is_set_to("overlap_p2p_comm", False):
        return []
    found = [advise(knob="overlap_p2p_comm", to=True, why="two interleaved stages need it")]
    if case.is_set_to("batch_p2p_comm", True):
        found.insert(0, advise(knob="batch_p2p_comm", to=False, why="batched messages cannot overlap"))
    return found


def without_chunks(case: Case) -> list[Advice]:
    """No virtual stages any more, nor what is known to be on and works between those only."""
    why = "there are no stages left to interleave"
    need = ("overlap_p2p_comm_warmup_flush", "overlap_p2p_comm")
    off = [advise(knob=knob, to=False, why=why) for knob in need if case.is_set_to(knob, True)]
    return [*off, advise(knob=VPP, to=None, why=why)]


def bubble_ceiling(case: Case) -> Gain | None:
    """At most the bubble that was measured, mean over ranks; None where it was not."""
    return _of_rows(case, ("bubble_ns",), "the pipeline's bubble")


def late_peer_ceiling(case: Case) -> Gain | None:
    """At most what stages waited for stages with more to do."""
    return _of_rows(case, ("late_peer_ns",), "the time in which stages wait for a slower one")


def transfer_ceiling(case: Case) -> Gain | None:
    """At most what stages waited for messages on their way, and for them to be handed over."""
    what = "the time of messages between stages that nothing hides"
    return _of_rows(case, ("transfer_ns", "handover_ns"), what)


def _of_rows(case: Case, columns: tuple[str, ...], what: str) -> Gain | None:
    rows = case.job.pipeline.stages
    steps = sum(row.steps for row in rows)
    if case.job.pipeline.state != "measured" or not steps or case.unit != "step":
        return None
    return Gain(
        low_ms=0.0,
        mid_ms=None,
        high_ms=sum(getattr(row, column) for row in rows for column in columns) / steps / 1e6,
        method="ceiling",
        assumptions=[f"no more than {what} can be gained; how much of it, nothing here tells"],
    )
