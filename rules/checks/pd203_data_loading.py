"""PD203: the step waits for its data."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results.replay import Gain
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.evidence import time_evidence
from perfdoc.rules.engine.gain import at_most, ceiling, predicted, worth_frac
from perfdoc.rules.engine.needs import WINDOW, given, on_some_rank
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance

META = Meta(
    code="PD203",
    title="Waiting for data",
    why="The next batch is not ready when the step wants it; no kernel runs meanwhile.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    time=("idle.data",),
    needs=(on_some_rank("traced data loading", lambda r: r.host.data), WINDOW),
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks; or what the replay says that the step would save, waits of other ranks
included."""


MAX_WORKERS = 8
"""Of a rank: with more than that, loading is rarely short of processes, and the cores of a machine are shared
by all of its ranks."""
_NONE = "Prepare batches in processes of their own, ahead of the step."
_MANY = (
    "There are loading processes enough: look at what each batch costs them (decoding, tokenising, the file "
    "system), and at whether the machine has a core for each."
)


def evaluate(case: Case) -> Verdict:
    """Fires where loading holds the device up for `MIN_FRAC` of the window."""
    share = given(case.share(lambda r: r.ledger.idle_ns["data"]))
    evidence = time_evidence(case, "idle behind data loading", share, lambda r: r.ledger.idle_ns["data"])
    if max(share, worth_frac(case, "without_data")) < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    known, now = case.setting("dataloader_num_workers")
    advice = []
    if known and isinstance(now, int) and not isinstance(now, bool) and now < MAX_WORKERS:
        to = min(max(2, 2 * now), MAX_WORKERS)
        why = f"{to} processes prepare batches while the step computes"
        costs = "host memory and CPU cores, of which each rank of the machine needs as many"
        gain = _with_workers(case, now, to)
        advice.append(advise(knob="dataloader_num_workers", to=to, why=why, costs=costs, gain=gain))
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.data"),
        reason="batches arrive later than the step wants them",
        evidence=evidence,
        remedy="" if advice else _MANY if known and now else _NONE,
        advice=advice,
        otherwise=_NONE,
        gain=(None if known else predicted(case, "without_data"))
        or ceiling(case, lambda r: r.ledger.idle_ns["data"], "the idle time behind loading"),
        verify="Run again: idle.data in the ledger falls.",
        false_alarm="The first steps of a run fill caches; a window that holds them is not steady.",
    )


def _with_workers(case: Case, now: int, to: int) -> Gain | None:
    """What so many processes gain: all of the waiting where that many are enough, if each of them is as fast
    as those before; else it is the most."""
    gain = predicted(case, "without_data")
    if gain is None:
        return None
    if not _keep_up(case, now, to):
        return at_most(gain, f"predicted for no waiting at all, for which {to} processes are too few")
    return replace(gain, assumptions=[*gain.assumptions, f"{to} processes load {to} batches at a time"])


def _keep_up(case: Case, now: int, to: int) -> bool:
    """Whether the batches of one step take less time, divided over the processes, than a step without its
    waiting.

    A step of T with waiting w: loaded in line, a batch costs w, over `to` processes w / to, of which T - w
    hides; with `now` processes that are the limit already, T becomes T x now / to.
    Half of a step in line and two processes: 0.25 <= 0.5.
    """
    waits = [
        (r.host.data.total_ns or 0) / r.ledger.window_ns
        for r in case.ranks
        if r.host.data.state == "measured" and r.ledger.window_ns
    ]
    wait = max(waits, default=0.0)
    return (now / to if now else wait / to) <= 1 - wait
