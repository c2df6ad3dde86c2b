"""Each step waits for the slowest host. Unpinned processes migrate between cores, or have their memory on
another socket than their GPU: they launch late at random, and collectives take longer on all other ranks."""

from perfdoc.results.figures import brief, per_cent
from perfdoc.rules.engine.gain import Gain, RankMeasurement, ceiling, upper_bound, waiting_ns
from perfdoc.rules.engine.needs import Missing, Need, given, over_ranks, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.culprit import waiting_leads
from perfdoc.rules.facts.graphs import MIN_GC_FRAC, graph_advice, launched_late_ns
from perfdoc.rules.facts.hardware import binding


def _too_few_steps(case: Case) -> Missing | None:
    found = case.job.host_jitter
    if found.median_spread_ns is None or not found.median_host_ns:
        return skipped(found.reason or "the hosts' time was not measured")
    if found.noise_spread_ns is None:
        return skipped(f"too few common steps ({found.common_steps}) to separate a slow host from noise")
    return None


META = Meta(
    title="Host jitter across ranks",
    action="Pin processes to CPU cores",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="host_overhead",
    time=("waits",),
    needs=(
        over_ranks("hosts of several ranks, compared step by step", lambda case: case.job.host_jitter),
        Need(words="enough common steps to separate a slow host from noise", missing=_too_few_steps),
    ),
    advice=("host_symptom_variation", "host_bind", "host_bind_divisor", "scale_jitter"),
    for_servers=True,
)

MIN_FRAC = 0.05
"""Of the host time of a step: longest less shortest of all ranks, median over steps."""
MIN_IDLE_FRAC = 0.01
"""Of the window: launch-bound idle time of the slow rank's device, else mean over ranks. With less, the
jitter has no effect on the device."""
MIN_WAIT_FRAC = 0.02
"""Of the window, mean over ranks: waiting for late ranks, if no single host is slow."""
PAUSE_NS = 2_000_000
"""Spread of the hosts' time from which on it is pauses: moving between cores costs less."""
_IN_TURN = "The host of another rank pauses in {}, and the others wait for it"
_TURNS_SEEN = 3
"""Steps in which one of several hosts pauses, from which on that is no slow step."""
_PAUSES = (
    "Collect garbage on all ranks in the same step (gc.disable(), gc.collect() each few steps); look at what "
    "Python does there: loading, logging. "
)
_TURNS = "a different host is slow in each step"
_WAITS = "all idle time that launching causes, and all waiting for late ranks"


def evaluate(case: Case) -> Verdict:
    """Fires if host times differ by `MIN_FRAC` of a step's and devices wait for them: as a problem if one
    host is slow repeatedly, or if different hosts are and ranks wait for late ranks for `MIN_WAIT_FRAC` of
    the time; as information if that was not measured."""
    found = case.job.host_jitter
    spread_ns, host_ns = given(found.median_spread_ns), given(found.median_host_ns)
    noise_ns = given(found.noise_spread_ns)
    beyond = max(0, spread_ns - noise_ns)
    share = spread_ns / host_ns
    evidence = [
        *([("longest less shortest host time of a step, median", per_cent(share))] if share <= 1 else []),
        ("spread of the host time", brief(spread_ns)),
        ("by chance alone, with no host slower than the others", brief(noise_ns)),
    ]
    # In fewer than half of the steps: the median has none of them.
    paused = [s for s in found.slowest if (s.median_lag_ns or 0) >= PAUSE_NS]
    seldom = share < MIN_FRAC and len(paused) > 1 and sum(s.steps for s in paused) >= _TURNS_SEEN
    if share < MIN_FRAC and not seldom:
        return passes(evidence)
    if seldom:
        evidence = [("spread of the host time, the longest", brief(found.worst_spread_ns or 0))]
    slow = [s for s in found.slowest if s.beyond_chance]
    if not slow and not case.on_host and _collecting(case):
        return passes(evidence, f"{_TURNS}, because ranks collect garbage at different times: see PD202")
    idle = _idle_frac(case, slow[0].label if slow else None)
    if idle is None or idle < MIN_IDLE_FRAC:
        return passes(evidence, "the host times differ, but no device is launch-bound")
    if slow:
        evidence.append((f"{slow[0].label} is slowest in", per_cent(slow[0].recurrence_frac, 0)))
    wait = None if slow or case.on_host else _wait_frac(case)
    if wait is not None:
        evidence.append(("waiting for late ranks, mean over ranks", per_cent(wait)))
        if wait < MIN_WAIT_FRAC:
            return passes(evidence, f"{_TURNS}, but ranks wait little for late ranks")
    costly = slow or wait is not None or (case.on_host and beyond / host_ns >= MIN_FRAC)
    most = _without_pauses(case) if wait is not None and (seldom or spread_ns >= PAUSE_NS) else None
    part = case.share_of_unit(most.size_ms) if most is not None else None
    leads = waiting_leads(case, part, late=case.job.skew.latest is not None)
    if seldom and not leads:
        return passes(evidence)
    launched = None if wait is None else ceiling(case, launched_late_ns, _WAITS, anywhere=True)
    gain = most if leads else launched
    return fires(
        action="Find why hosts pause in turn" if leads else "",
        blames=_IN_TURN.format("some steps" if seldom else "each step") if leads else "",
        worst=worst_instance(case, "idle.host", label=slow[0].label) if slow else None,
        level="problem" if costly else "information",
        reason=f"the host of {slow[0].label} is slow repeatedly" if slow else _TURNS,
        evidence=evidence,
        advice=[] if case.on_host else graph_advice(case, None, None),
        remedy=(_PAUSES if leads else "") + _remedy(case, slow[0].label if slow else ""),
        gain=gain,
        verify="Run again: the spread in the host section is within noise.",
        false_alarm="A rank with more work by design, such as the stage with the loss, or one that logs; a "
        "profiler that flushes its buffers at a different time on each rank.",
    )


def _without_pauses(case: Case) -> Gain | None:
    """No rank pauses and none waits for one: in the mean what each of them idles so."""
    waits = waiting_ns(case)

    def paused_ns(rank: RankMeasurement) -> int:
        idle = rank.ledger.idle
        most = waits[id(rank)] + idle.host + idle.data + idle.gc
        return min(most, rank.ledger.total - rank.ledger.compute)

    ms = case.per_unit_ms(paused_ns)
    said = "all waiting for late ranks, and all idle time before late launches"
    return None if ms is None else upper_bound(ms, said)


def _idle_frac(case: Case, slow: str | None) -> float | None:
    """Launch-bound idle time of the slow rank's device, else the mean over ranks. A CPU rank has no device
    that could wait: its host time is the step time."""
    if case.on_host:
        return 1.0
    mine = [r for r, label in zip(case.ranks, case.job.labels, strict=False) if label == slow]
    if mine and mine[0].ledger.total:
        return mine[0].ledger.idle.host / mine[0].ledger.total
    return case.share(lambda r: r.ledger.idle.host)


def _wait_frac(case: Case) -> float | None:
    """Waiting in collectives over the windows. None if ranks are not matched, or if so many collectives
    overlap, which count twice, that it is no share."""
    windows = sum(r.ledger.total for r in case.ranks)
    if case.job.skew.state != "measured" or not windows:
        return None
    share = sum(w.wait_ns for w in case.job.skew.waits) / windows
    return share if share <= 1 else None


def _collecting(case: Case) -> bool:
    """Whether garbage collection is most of the host-caused idle time, and enough for PD202."""
    gc = case.share(lambda r: r.ledger.idle.gc) or 0.0
    return gc >= MIN_GC_FRAC and gc >= (case.share(lambda r: r.ledger.idle.host) or 0.0)


def _remedy(case: Case, slow: str) -> str:
    look = f"Check what else runs on the machine of {slow}. " if slow else ""
    if case.on_host:
        return f"{look}Pin each process to its own cores (taskset, numactl), with as many threads as cores."
    return f"{look}Bind each rank to the cores and memory of its GPU's NUMA node{binding(case.gpu)}"
