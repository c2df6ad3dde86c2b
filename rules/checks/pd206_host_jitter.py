"""PD206: hosts that take different time for the same step."""

from __future__ import annotations

from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.needs import Missing, Need, given, over_ranks, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.hardware import binding
from perfdoc.rules.facts.idle import MIN_GC_FRAC


def _too_few_steps(case: Case) -> Missing | None:
    found = case.job.host_jitter
    if found.median_spread_ns is None or not found.median_host_ns:
        return skipped(found.reason or "the hosts' time was not measured")
    if found.noise_spread_ns is None:
        return skipped(f"too few common steps ({found.common_steps}) to tell a slow host from noise")
    return None


META = Meta(
    code="PD206",
    title="Hosts of unequal speed",
    why="Each step waits for the slowest host. Processes that wander between cores, or whose memory lies on "
    "another socket than their GPU, launch late at random, and collectives last longer on all other ranks.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    time=("waits",),
    needs=(
        over_ranks("hosts of several ranks, compared step by step", lambda case: case.job.host_jitter),
        Need(words="common steps enough to tell a slow host from noise", missing=_too_few_steps),
    ),
    advice=("host_symptom_variation", "host_bind", "host_bind_divisor", "scale_jitter"),
)

MIN_FRAC = 0.05
"""Of the host's time for a step: longest less shortest of all ranks, median over steps."""
MIN_IDLE_FRAC = 0.01
"""Of the window: idle behind the host, of the slow rank's device, else mean over ranks. With less, the device
does not notice its host."""
MIN_WAIT_FRAC = 0.02
"""Of the window, mean over ranks: what ranks wait for one another, where no host is the slow one."""
_TURNS = "hosts are slow in turn"
_WAITS = "what ranks wait for one another, whatever for,"


def evaluate(case: Case) -> Verdict:
    """Fires where hosts differ by `MIN_FRAC` of their time for a step and devices wait for them: as a problem
    where one is slow again and again, or where they are by turns and ranks wait for one another for
    `MIN_WAIT_FRAC` of the time; as information where that was not measured."""
    found = case.job.host_jitter
    spread_ns, host_ns = given(found.median_spread_ns), given(found.median_host_ns)
    noise_ns = given(found.noise_spread_ns)
    beyond = max(0, spread_ns - noise_ns)
    share = spread_ns / host_ns
    evidence = [
        Evidence(label="longest less shortest host time of a step, median", value=per_cent(share)),
        Evidence(label="that is", value=brief(spread_ns)),
        Evidence(label="each host's own variation explains", value=brief(noise_ns)),
    ]
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    slow = [s for s in found.slowest if s.beyond_chance]
    if not slow and not case.on_host and _collecting(case):
        reason = f"{_TURNS}, as they collect garbage at different times: see PD202"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    idle = _idle_frac(case, slow[0].label if slow else None)
    if idle is None or idle < MIN_IDLE_FRAC:
        reason = "the hosts differ, and no device waits for its host"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if slow:
        evidence.append(
            Evidence(label=f"{slow[0].label} is slowest in", value=per_cent(slow[0].recurrence_frac, 0))
        )
    wait = None if slow or case.on_host else _wait_frac(case)
    if wait is not None:
        evidence.append(Evidence(label="waiting for one another, mean over ranks", value=per_cent(wait)))
        if wait < MIN_WAIT_FRAC:
            reason = f"{_TURNS}, and ranks hardly wait for one another"
            return Verdict(state="passes", reason=reason, evidence=evidence)
    costly = slow or wait is not None or (case.on_host and beyond / host_ns >= MIN_FRAC)
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.host", label=slow[0].label) if slow else None,
        level="problem" if costly else "information",
        reason=f"{slow[0].label} is slow on its host again and again" if slow else _TURNS,
        evidence=evidence,
        remedy=_remedy(case, slow[0].label if slow else ""),
        gain=None if wait is None else ceiling(case, lambda r: round(wait * r.ledger.window_ns), _WAITS),
        verify="Run again: the spread in the host section falls to what chance explains.",
        false_alarm="Ranks with more work by design, such as the stage with the loss, or one that logs; a "
        "profiler that writes its buffers on each rank at another moment.",
    )


def _idle_frac(case: Case, slow: str | None) -> float | None:
    """Idle time behind the host: of the slow rank's device, else the mean over ranks. A CPU rank has no
    device that could wait: its own time is the step's."""
    if case.on_host:
        return 1.0
    mine = [r for r, label in zip(case.ranks, case.job.labels, strict=False) if label == slow]
    if mine and mine[0].ledger.window_ns:
        return mine[0].ledger.idle_ns["host"] / mine[0].ledger.window_ns
    return case.share(lambda r: r.ledger.idle_ns["host"])


def _wait_frac(case: Case) -> float | None:
    """Waiting in collectives by the windows, of which collectives that overlap count twice: 1 at most. None
    where ranks are not matched with one another."""
    windows = sum(r.ledger.window_ns for r in case.ranks)
    if case.job.skew.state != "measured" or not windows:
        return None
    return min(1.0, sum(w.wait_ns for w in case.job.skew.waits) / windows)


def _collecting(case: Case) -> bool:
    """Whether most of what devices idle for their hosts is garbage collection, enough of it for PD202."""
    gc = case.share(lambda r: r.ledger.idle_ns["gc"]) or 0.0
    return gc >= MIN_GC_FRAC and gc >= (case.share(lambda r: r.ledger.idle_ns["host"]) or 0.0)


def _remedy(case: Case, slow: str) -> str:
    look = f"Look at what else runs beside {slow}. " if slow else ""
    if case.on_host:
        return f"{look}Pin each process to cores of its own (taskset, numactl), as many threads as cores."
    return f"{look}Bind each rank to the cores and memory beside its GPU{binding(case.gpu)}"
