"""PD381: ranks that come late by turns, because their hosts do."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.rules.case import Case
from perfdoc.rules.gain import ceiling, predicted
from perfdoc.rules.host_binding import binding
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD381",
    title="Hosts that hold up the job by turns",
    why="A collective waits for its last rank. With many ranks one host or another is always slow for a "
    "moment: collecting garbage, moved to another core, in a system call.",
    sources=("seed 000", "seed 001"),
    topic="scale",
    needs=("ranks", "steps"),
    advice=("scale_jitter",),
)

MIN_FRAC = 0.02
"""Of the step: both the spread of the hosts' time between ranks and what ranks wait for one another."""
MIN_STEPS = 4
"""Fewer do not show whether ranks take turns."""
INTERVAL = 100
"""Steps between collections that Megatron-Bridge's and megatron-core's guides use."""
_HOST = ("host", "gc", "data")
_BIND = (
    "Bind each process to the cores and memory beside its GPU{binding} CUDA graphs take launches off the "
    "host where shapes are static, see PD201."
)
_COLLECT = "Most of it is garbage collection: see PD202. "


def evaluate(case: Case) -> Verdict:
    """Fires where hosts' times spread by `MIN_FRAC` of a step, ranks wait for one another as long, the ranks
    together idle behind their hosts as long, and no rank is the slow one beyond chance (PD303)."""
    jitter, skew = case.job.host_jitter, case.job.skew
    if len(case.ranks) < 2:
        return Verdict(state="not_applicable", reason="one rank only")
    if case.on_host:
        return Verdict(
            state="not_applicable", reason="the ranks train on the CPU: their compute is the host's"
        )
    if jitter.state != "measured" or jitter.median_spread_ns is None:
        return Verdict(state="skipped", reason=jitter.reason)
    if (jitter.common_steps or 0) < MIN_STEPS:
        reason = f"{jitter.common_steps or 0} steps that all ranks share do not show whether ranks take turns"
        return Verdict(state="skipped", reason=reason)
    step_ms, wait = case.unit_ms, _wait_frac(case)
    if skew.state != "measured" or wait is None or not step_ms or case.unit != "step":
        return Verdict(state="skipped", reason=skew.reason or "steps are not known")
    spread = jitter.median_spread_ns / 1e6 / step_ms
    idle = _of_all(case, _HOST)
    evidence = [
        Evidence(
            label="hosts' time in a step, longest less shortest, median", value=f"{spread:.1%} of a step"
        ),
        Evidence(label="waiting for one another, mean over ranks", value=f"{wait:.1%}"),
        Evidence(label="idle behind the host, all ranks together", value=f"{idle:.1%} of a step"),
    ]
    if min(spread, wait, idle) < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    one = next((s for s in jitter.slowest if s.beyond_chance), None)
    if one is not None:
        return Verdict(state="passes", reason=f"{one.label} is the slow one, see PD303", evidence=evidence)
    collecting = 2 * _of_all(case, ("gc",)) >= idle
    return Verdict(
        state="fires",
        reason="another rank's host is late in each step",
        evidence=evidence,
        advice=list(_advice(case)),
        remedy=(_COLLECT if collecting else "") + _BIND.format(binding=binding(case.gpu)),
        gain=ceiling(
            case, lambda r: round(min(spread, wait) * r.ledger.window_ns), "the spread of the hosts"
        ),
        verify="Run again: the spread in the section on host jitter falls, and waiting in the skew section "
        "with it.",
        false_alarm="A profiler that writes its buffers on each rank at another moment.",
    )


def _of_all(case: Case, causes: tuple[str, ...]) -> float:
    """Idle time of some causes, all ranks together, as a share of one window."""
    return (case.share(lambda r: sum(r.ledger.idle_ns[cause] for cause in causes)) or 0.0) * len(case.ranks)


def _wait_frac(case: Case) -> float | None:
    """Waiting in collectives by the windows; collectives that overlap count twice, so 1 at most."""
    windows = sum(r.ledger.window_ns for r in case.ranks)
    return min(1.0, sum(w.wait_ns for w in case.job.skew.waits) / windows) if windows else None


def _advice(case: Case) -> Iterator[Advice]:
    gc = case.job.host_jitter.gc
    if case.is_set_to("manual_gc", False) and (gc.avoidable_ns or 0) > 0:
        why = "Python then collects garbage only when told to, on all ranks in the same step"
        yield Advice(knob="manual_gc", to=True, why=why, gain=predicted(case, "without_gc"))
        yield Advice(
            knob="manual_gc_interval",
            to=INTERVAL,
            why=f"collects every {INTERVAL} steps",
            costs="host memory in between",
        )
