"""PD203: data-loader stalls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfdoc.results.figures import per_cent
from perfdoc.results.host import DataPauses
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import at_most, bounded, ceiling, predicted, time_evidence, worth_frac
from perfdoc.rules.engine.needs import WINDOW, given, on_some_rank
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance

META = Meta(
    code="PD203",
    title="Data-loader stalls",
    action="Load batches ahead of the step",
    why="The next batch is not ready when the step starts, and the device idles.",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="host_overhead",
    time=("idle.data",),
    needs=(on_some_rank("data loading that the capture shows", lambda r: r.host.data), WINDOW),
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks; or the predicted gain of the step, other ranks' waits included."""


MAX_WORKERS = 8
"""Per rank: more rarely help, and all ranks of a machine share its cores."""
_NONE = "Prepare batches in separate processes, ahead of the step."
_MANY = (
    "There are enough loader processes: look at their cost per batch (decoding, tokenising, file system), "
    "and whether the machine has a core for each."
)


_EVIDENCE: tuple[tuple[str, str, Callable[[DataPauses], int | None]], ...] = (
    ("range", "a range names the loader", lambda d: d.idle_range_ns),
    ("thread", "the launching thread waited between steps", lambda d: d.idle_thread_ns),
    ("position", "only the place between steps tells", lambda d: d.idle_position_ns),
)
"""Strongest first."""
_REASONS = {
    "range": "batches arrive too late",
    "thread": "the launching thread waits between steps, as it does for batches that arrive too late",
    "position": "likely batches arrive too late: long pauses between steps, without a CUDA call",
}
_FIRST_STEPS = "The window holds the first steps of a run, which fill caches."
_FALSE_ALARMS = {
    "range": _FIRST_STEPS,
    "thread": "The thread waits for something else in every step: another process, a barrier on the CPU, a "
    "lock.",
    "position": "Anything else that Python does after every step: logging, metrics, a scheduler.",
}
_SETTLE = {
    "range": "",
    "thread": "To be sure, put a range around the call that fetches a batch, or name it with --data-range.",
    "position": "To be sure, put a range around the call that fetches a batch (or name it with "
    "--data-range), or capture with nsys --cpuctxsw=process-tree.",
}


def evaluate(case: Case) -> Verdict:
    """Fires if data-loader stalls take `MIN_FRAC` of the window, those between steps that no range names
    included; says how they are known."""
    share = given(case.share(lambda r: r.ledger.idle.data))
    evidence = time_evidence(case, "data-loader stalls", share, lambda r: r.ledger.idle.data)
    evidence += _how_known(case)
    if max(share, worth_frac(case, "without_data")) < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    known, now = case.setting("dataloader_num_workers")
    advice = []
    if known and isinstance(now, int) and not isinstance(now, bool) and now < MAX_WORKERS:
        to = min(max(2, 2 * now), MAX_WORKERS)
        why = f"{to} processes prepare batches during the step"
        costs = "host memory, and as many CPU cores for each rank of the machine"
        gain = _with_workers(case, now, to)
        advice.append(advise(knob="dataloader_num_workers", to=to, why=why, costs=costs, gain=gain))
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.data"),
        reason=_REASONS[_strength(case)],
        evidence=evidence,
        remedy=_remedy(case, "" if advice else _MANY if known and now else _NONE),
        advice=advice,
        otherwise=_NONE,
        gain=bounded(
            None if known else predicted(case, "without_data"),
            ceiling(case, lambda r: r.ledger.idle.data, "all data-loader stalls"),
        ),
        verify="Run again: idle.data in the ledger falls.",
        false_alarm=_FALSE_ALARMS[_strength(case)],
    )


def _by_evidence(case: Case) -> dict[str, float]:
    """Share of the window by evidence."""

    def share(of: Callable[[DataPauses], int | None]) -> float:
        return case.share(lambda rank: of(rank.host.data) or 0) or 0.0

    return {key: share(of) for key, _, of in _EVIDENCE}


def _strength(case: Case) -> str:
    """The strongest evidence that, with all stronger, half of the stalls have."""
    shares = _by_evidence(case)
    so_far, half = 0.0, sum(shares.values()) / 2
    for key, share in shares.items():
        so_far += share
        if so_far >= half:
            return key
    return "range"


def _how_known(case: Case) -> list[Evidence]:
    shares = _by_evidence(case)
    if not shares["thread"] and not shares["position"]:
        return []
    return [Evidence(label=label, value=per_cent(shares[key])) for key, label, _ in _EVIDENCE if shares[key]]


def _remedy(case: Case, words: str) -> str:
    return " ".join(w for w in (words, _SETTLE[_strength(case)]) if w)


def _with_workers(case: Case, now: int, to: int) -> Gain | None:
    """The gain of `to` processes: all stalls if that many suffice at the current time per batch; else an
    upper bound."""
    gain = predicted(case, "without_data")
    if gain is None:
        return None
    if not _keep_up(case, now, to):
        return at_most(gain, f"predicted without any stalls; {to} processes are too few for that")
    return replace(gain, assumptions=[*gain.assumptions, f"{to} processes load {to} batches concurrently"])


def _keep_up(case: Case, now: int, to: int) -> bool:
    """Whether `to` processes load the batches of one step faster than a step without stalls.

    A step of T with stalls w: loaded in the training process, a batch costs w, over `to` processes w / to,
    hidden by T - w; if `now` processes are the limit already, T becomes T x now / to.
    Stalls of half a step, no processes, to two: 0.25 <= 0.5.
    """
    waits = [
        (r.host.data.total_ns or 0) / r.ledger.total
        for r in case.ranks
        if r.host.data.state == "measured" and r.ledger.total
    ]
    wait = max(waits, default=0.0)
    return (now / to if now else wait / to) <= 1 - wait
