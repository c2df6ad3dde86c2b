"""PD303: one rank that all others wait for, again and again."""

from __future__ import annotations

from perfdoc.analyzers.skew.stragglers import FEWEST, Straggler
from perfdoc.rules.case import Case
from perfdoc.rules.gain import predicted, worth_frac
from perfdoc.rules.rule import Evidence, Meta, Verdict

META = Meta(
    code="PD303",
    title="Straggler",
    why="A collective ends when its last rank comes: one slow rank sets the speed of all.",
    sources=("seed 000", "seed 001"),
    topic="scale",
    needs=("ranks",),
    advice=("host_symptom_variation",),
)

MIN_FRAC = 0.01
"""Of the time: what its lateness costs, by replay where there is one."""


def evaluate(case: Case) -> Verdict:
    """Fires where a rank comes last beyond chance, at a cost of `MIN_FRAC`."""
    found = case.job.skew
    if found.state != "measured":
        alone = len(case.ranks) < 2
        return Verdict(state="not_applicable" if alone else "skipped", reason=found.reason or "one rank only")
    if found.stragglers_state == "not_distinguishable" or found.stragglers_state == "not_compared":
        return Verdict(state="skipped", reason=found.stragglers_reason)
    if not found.stragglers and found.distinguishable < FEWEST:
        return Verdict(state="skipped", reason=found.stragglers_reason)
    late = [s for s in found.stragglers if _loss_frac(case, s) >= MIN_FRAC]
    if not late:
        return Verdict(
            state="passes",
            evidence=[
                Evidence(
                    label="collectives whose arrivals can be told apart, of those compared",
                    value=f"{found.distinguishable:,} of {found.compared:,}",
                )
            ],
        )
    worst = max(late, key=lambda s: _loss_frac(case, s))
    return Verdict(
        state="fires",
        reason=f"{worst.name} comes last to {worst.dimension.upper()} collectives",
        evidence=[
            Evidence(label="comes last to", value=f"{worst.recurrence_frac:.0%} of them"),
            Evidence(label="by chance it would be", value=f"{worst.chance_frac:.0%}"),
            Evidence(
                label="others waited for it, summed over collectives that may overlap",
                value=f"{worst.delay_ns / 1e6:.3g} ms",
            ),
        ],
        remedy=f"Look at {worst.name}: its clock, temperature, neighbours on the machine, share of the work, "
        "and what its host does.",
        gain=predicted(case, f"without_straggler_{worst.dimension}"),
        verify="Run again, with the rank on another machine: if the machine is the cause, the lateness "
        "stays there.",
        false_alarm="A rank with more work by design, such as the stage that holds the loss.",
    )


def _loss_frac(case: Case, straggler: Straggler) -> float:
    """What the replay says that it costs; else the sum of its delays, which counts overlapping ones twice and
    so is the most that it can be."""
    key = f"without_straggler_{straggler.dimension}"
    if (prediction := case.prediction(key)) is not None and prediction.mid_ns is not None:
        return worth_frac(case, key)
    span = max((r.span_ns[1] - r.span_ns[0] for r in case.ranks), default=0)
    return min(1.0, straggler.delay_ns / span) if span else 0.0
