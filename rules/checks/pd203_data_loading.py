"""The next batch is not ready when the step starts, and the device idles."""

from collections.abc import Callable
from dataclasses import replace

from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent
from perfdoc.results.host import DataPauses
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.assumptions import NVIDIA, Assumes
from perfdoc.rules.engine.gain import (
    Gain,
    RankMeasurement,
    at_most,
    bounded,
    ceiling,
    predicted,
    time_share,
    worth_frac,
)
from perfdoc.rules.engine.needs import WINDOW, on_some_rank
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.loading import FASTER, by_hand, loads_ahead

_SCHEDULING = ", or capture with nsys --cpuctxsw=process-tree"
META = Meta(
    title="Data-loader stalls",
    action="Load batches ahead of the step",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="host_overhead",
    time=("idle.data",),
    with_it=("other ranks' waits for it", "launches that it delays"),
    needs=(on_some_rank("data loading that the capture shows", lambda r: r.host.data), WINDOW),
    assumes=(Assumes(of=NVIDIA, words=_SCHEDULING),),
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks; or the predicted gain of the step, other ranks' waits included."""


MAX_WORKERS = 8
"""Per rank: more rarely help, and all ranks of a machine share its cores."""
_MORE = "worker processes are there already: whether more of them keep up is not known"
_MANY = (
    "There are enough loader processes: look at their cost per batch (decoding, tokenising, file system), "
    "and whether the machine has a core for each."
)


_RANGE = "To be sure, put a range around the call that fetches a batch (or name it with --data-range)"


@dataclass(frozen=True)
class _Known:
    """How stalls are known."""

    label: str
    of: Callable[[DataPauses], int | None]
    reason: str
    settle: str
    """What would make it sure."""
    false_alarm: str


_EVIDENCE = (
    _Known(
        "a range names the loader",
        lambda d: d.idle_range_ns,
        "batches arrive too late",
        "",
        "The window holds the first steps of a run, which fill caches.",
    ),
    _Known(
        "the launching thread waited between steps",
        lambda d: d.idle_thread_ns,
        "the launching thread waits between steps, as it does for batches that arrive too late",
        f"{_RANGE}.",
        "The thread waits for something else in every step: another process, a barrier on the CPU, a lock.",
    ),
    _Known(
        "only the place between steps tells",
        lambda d: d.idle_position_ns,
        "likely batches arrive too late: long pauses between steps, without a CUDA call",
        f"{_RANGE}{_SCHEDULING}.",
        "Anything else that Python does after every step: logging, metrics, a scheduler.",
    ),
)
"""Strongest first."""


def evaluate(case: Case) -> Verdict:
    """Fires if data-loader stalls take `MIN_FRAC` of the window, those between steps that no range names
    included; says how they are known."""
    share, evidence = time_share(case, "data-loader stalls", lambda r: r.ledger.idle.data)
    shares = [case.share(lambda rank, of=how.of: of(rank.host.data) or 0) or 0.0 for how in _EVIDENCE]  # type: ignore[misc]
    if any(shares[1:]):
        evidence += [(how.label, per_cent(part)) for how, part in zip(_EVIDENCE, shares, strict=True) if part]
    if max(share, worth_frac(case, "without_data")) < MIN_FRAC:
        return passes(evidence)
    # The strongest evidence that, with all stronger, half of the stalls have.
    how = next(h for i, h in enumerate(_EVIDENCE, 1) if 2 * sum(shares[:i]) >= sum(shares))
    known, now = case.setting("dataloader_num_workers")[0], case.number("dataloader_num_workers")
    advice = []
    if now is not None and now < MAX_WORKERS:
        to = min(max(2, 2 * now), MAX_WORKERS)
        why = f"{to} processes prepare batches during the step"
        costs = "host memory, and as many CPU cores for each rank of the machine"
        gain = _with_workers(case, now, to)
        advice.append(advise(knob="dataloader_num_workers", to=to, why=why, costs=costs, gain=gain))
    return fires(
        reason=how.reason,
        evidence=evidence,
        action=FASTER if loads_ahead(case) else "",
        remedy=f"{'' if advice else _MANY if now else by_hand(case)} {how.settle}".strip(),
        advice=advice,
        otherwise=by_hand(case),
        gain=bounded(
            None if known or loads_ahead(case) else predicted(case, "without_data"),
            ceiling(case, _loading_ns, "all data-loader stalls", anywhere=True),
        ),
        verify="Run again: idle.data in the ledger falls.",
        false_alarm=how.false_alarm,
    )


def _loading_ns(rank: RankMeasurement) -> int:
    """All of it, for it may delay launches while queued kernels run; but these a device computes anyway. On
    a CPU loading computes itself."""
    anyway = 0 if rank.on_host else rank.ledger.compute
    return max(min(rank.host.data.total_ns or 0, rank.ledger.total - anyway), rank.ledger.idle.data)


def _with_workers(case: Case, now: int, to: int) -> Gain | None:
    """The gain of `to` processes: all stalls if they load batches as fast as a step without stalls takes;
    else an upper bound.

    A step of T with stalls w: loaded in the training process, a batch costs w, over `to` processes w / to,
    hidden by T - w. Where `now` processes are the limit already, more of them may find no core or no faster
    storage: an upper bound.
    Stalls of half a step, no processes, to two: 0.25 <= 0.5.
    """
    gain = predicted(case, "without_data")
    if gain is None:
        return None
    measured = [r for r in case.ranks if r.host.data.state == "measured" and r.ledger.total]
    wait = max(((r.host.data.total_ns or 0) / r.ledger.total for r in measured), default=0.0)
    if now:
        return at_most(gain, _MORE)
    if wait / to > 1 - wait:
        return at_most(gain, f"predicted without any stalls; {to} processes are too few for that")
    return replace(gain, assumptions=[*gain.assumptions, f"{to} processes load {to} batches concurrently"])
