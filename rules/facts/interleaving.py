"""Whether interleaving costs more in send/recv than its smaller bubble saves."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, first_missing, given, not_applicable, skipped
from perfdoc.rules.facts.bubble import PIPELINE
from perfdoc.rules.facts.degrees import VPP

MIN_SAVED_FRAC = 0.02
"""Of the step: what fewer chunks save in send/recv, less what they add to the bubble."""


@dataclass(frozen=True, kw_only=True)
class Interleaving:
    """Measured cost of interleaving, and the effect of fewer chunks."""

    transfer_frac: float
    bubble_frac: float
    now: int
    """Chunks per stage."""
    to: int | None
    """Fewer chunks that save more than they cost; None if there is no such number."""
    why_not: str
    """Why fewer chunks are not advised; empty if they are."""
    replayed: Gain | None
    """The predicted gain of exactly this number; None if it was not replayed."""

    @property
    def too_much(self) -> bool:
        """Whether fewer chunks are better."""
        return self.to is not None and not self.why_not


def _chunks(case: Case) -> int | None:
    return case.degree(VPP) or case.job.pipeline.vpp


def _no_chunks(case: Case) -> Missing | None:
    found, now = case.job.pipeline, _chunks(case)
    if found.state != "measured" or found.bubble_frac is None or found.transfer_frac is None:
        return skipped(found.reason or "bubble and send/recv were not measured")
    if now is None:
        return skipped("the number of virtual stages is not known")
    if now > 2:
        return None
    return not_applicable(
        "there are no virtual stages" if now == 1 else "two chunks: with one, send/recv cannot overlap"
    )


NEEDS = (
    PIPELINE,
    Need(words="a measured bubble and send/recv, with three or more chunks per stage", missing=_no_chunks),
)


def interleaving(case: Case) -> Interleaving:
    """For a case that meets NEEDS."""
    found, now = case.job.pipeline, given(_chunks(case))
    transfer, bubble = given(found.transfer_frac), given(found.bubble_frac)
    saved = {to: _saved(transfer, bubble, now, to) for to in _fewer(now)}
    best = max(saved, key=lambda to: saved[to], default=None)
    if best is None or transfer <= bubble or saved[best] < MIN_SAVED_FRAC:
        best = None
    replayed = None if best is None else _replayed(case, now, best)
    why_not = ""
    if best is not None and case.is_set_to("overlap_p2p_comm", False):
        why_not = "send/recv is not overlapped, fix that first: see PD307"
    elif replayed is not None and not (replayed.mid_ms or 0.0) > 0:
        why_not = "fewer chunks have no predicted gain"
    return Interleaving(
        transfer_frac=transfer, bubble_frac=bubble, now=now, to=best, why_not=why_not, replayed=replayed
    )


def costs_more_than_it_saves(case: Case) -> bool:
    """Whether fewer chunks are known to be better."""
    return first_missing(case, NEEDS) is None and interleaving(case).too_much


def _replayed(case: Case, now: int, to: int) -> Gain | None:
    """The predicted gain of exactly this number of chunks."""
    found = case.prediction("fewer_virtual_stages")
    same = found is not None and now == case.job.facts.vpp and found.settings.get(VPP) == to
    return found.gain if same and found is not None and found.gain.is_predicted else None


def _fewer(now: int) -> list[int]:
    return [to for to in range(2, min(now, 256)) if now % to == 0]


def _saved(transfer: float, bubble: float, now: int, to: int) -> float:
    """Saved share of the step. Transfer 30 %, bubble 2 %, 4 chunks to 2: 30 % / 2 - 2 % = 13 %."""
    return transfer * (1 - to / now) - bubble * (now / to - 1)
