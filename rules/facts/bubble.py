"""The pipeline bubble, by formula and as measured, for the rules about pipelines."""

from __future__ import annotations

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise, needing
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, applies, skipped
from perfdoc.rules.facts.degrees import PP, VPP

PER_STAGE = 4
"""Least micro-batches per stage by the guides: the bubble is then at most (pp - 1) / (4 pp) of the work,
below a fifth of the step."""
MIN_FRAC = 0.05
"""Of the step: a smaller bubble is no finding."""


def bubble_at(case: Case, at: Degrees) -> float:
    """Bubble of equal stages, of the step, under other degrees and the same global batch; 1 if a pipeline
    gets no micro-batch, or it is unknown."""
    batch, each = case.number("global_batch_size"), case.number("micro_batch_size")
    micro_batches = (batch or 0) // ((each or 1) * at.dp)
    return ideal_bubble_frac(pp=at.pp, vpp=at.vpp, micro_batches=micro_batches) if micro_batches else 1.0


def bubble_grows(case: Case, now: Degrees, then: Degrees) -> float:
    """Growth of the bubble, of the step: more replicas leave each fewer micro-batches, or stages are
    added."""
    return bubble_at(case, then) - bubble_at(case, now)


PIPELINE = applies(
    "a pipeline degree above 1, or unknown",
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
    """What two interleaved stages need: overlapped send/recv, if it is known to be off."""
    if not case.is_set_to("overlap_p2p_comm", False):
        return []
    found = [advise(knob="overlap_p2p_comm", to=True, why="two interleaved stages need it")]
    if case.is_set_to("batch_p2p_comm", True):
        found.insert(0, advise(knob="batch_p2p_comm", to=False, why="batched send/recv cannot overlap"))
    return found


def without_chunks(case: Case) -> list[Advice]:
    """Virtual stages off, with the settings known to be on that only work with them."""
    why = "there are no stages left to interleave"
    need = ("overlap_p2p_comm_warmup_flush", "overlap_p2p_comm")
    off = [advise(knob=knob, to=False, why=why) for knob in need if case.is_set_to(knob, True)]
    return needing(advise(knob=VPP, to=None, why=why), off)


def bubble_ceiling(case: Case) -> Gain | None:
    """Upper bound: the measured bubble, mean over ranks; None if it was not measured."""
    return _of_rows(case, ("bubble_ns",), "the whole pipeline bubble")


def late_peer_ceiling(case: Case) -> Gain | None:
    """Upper bound: the time that stages wait for slower stages."""
    return _of_rows(case, ("late_peer_ns",), "all waiting for late peers")


def transfer_ceiling(case: Case) -> Gain | None:
    """Upper bound: the time that stages wait for send/recv and its handover."""
    what = "all exposed send/recv between stages"
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
        assumptions=[f"upper bound, not predicted: {what}"],
    )
