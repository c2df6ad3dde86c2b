"""PD304: virtual stages whose messages cost more than their smaller bubble saves."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import predicted
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.bubble import no_pipeline, transfer_ceiling
from perfdoc.rules.facts.degrees import VPP

META = Meta(
    code="PD304",
    title="Virtual stages that cost more than they save",
    why="Every chunk of a stage sends and receives for itself: interleaving divides the bubble and "
    "multiplies the messages.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="pipeline",
    time=("pipeline.transfer",),
    needs=("ranks", "steps"),
    advice=("pp_vpp_smaller_when_many_mb", "pp_vpp_adds_comm"),
)

MIN_FRAC = 0.02
"""Of the step: what fewer chunks save in messages, less what they add to the bubble."""


def evaluate(case: Case) -> Verdict:
    """Fires where messages that nothing hides take more than the bubble, and fewer chunks would save
    `MIN_FRAC`: messages in proportion to chunks, the bubble against them. Not where the messages are not
    even overlapped (PD307), nor where the replay of just this change gains nothing."""
    if nothing := no_pipeline(case):
        return nothing
    found = case.job.pipeline
    if found.state != "measured" or found.bubble_frac is None or found.transfer_frac is None:
        return Verdict(state="skipped", reason=found.reason or "bubble and messages were not measured")
    now = case.degree(VPP) or found.vpp
    if now is None:
        return Verdict(state="skipped", reason="the number of virtual stages is not known")
    if now <= 2:
        reason = "there are no virtual stages" if now == 1 else "two chunks: with one, messages hide no more"
        return Verdict(state="not_applicable", reason=reason)
    evidence = [
        Evidence(label="messages between stages that nothing hides", value=per_cent(found.transfer_frac)),
        Evidence(label="bubble, of the step", value=per_cent(found.bubble_frac)),
        Evidence(label="chunks of a stage", value=str(now)),
    ]
    saved = {to: _saved(found.transfer_frac, found.bubble_frac, now, to) for to in _fewer(now)}
    best = max(saved, key=lambda to: saved[to], default=None)
    if best is None or found.transfer_frac <= found.bubble_frac or saved[best] < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if case.is_set_to("overlap_p2p_comm", False):
        reason = "messages do not run beside compute, which comes first: see PD307"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    replayed = _replayed(case, now, best)
    if replayed is not None and not (replayed.mid_ms or 0.0) > 0:
        reason = "fewer chunks gain nothing by the replay"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    fewer = per_cent(1 - best / now, 0)
    why = f"{best} chunks, not {now}: {fewer} fewer messages, {now / best:.3g} times the bubble"
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "pp"),
        reason="messages between stages cost more than the bubble that interleaving saves",
        evidence=evidence,
        advice=[advise(knob=VPP, to=best, why=why, gain=replayed)],
        gain=transfer_ceiling(case),
        verify="Run again: transfer in the pipeline section falls by more than the bubble grows.",
        false_alarm="Messages that are slow for another reason, such as stages on distant nodes.",
    )


def _replayed(case: Case, now: int, to: int) -> Gain | None:
    """What the replay says of just this many chunks: it halves what the job's facts say."""
    gain = predicted(case, "fewer_virtual_stages")
    same = now == case.job.facts.vpp and 2 * to == now
    return gain if same and gain is not None and gain.method == "replay" else None


def _fewer(now: int) -> list[int]:
    return [to for to in range(2, min(now, 256)) if now % to == 0]


def _saved(transfer: float, bubble: float, now: int, to: int) -> float:
    """Of the step. transfer 30 %, bubble 2 %, 4 chunks to 2: 30 % / 2 - 2 % = 13 %."""
    return transfer * (1 - to / now) - bubble * (now / to - 1)
