"""PD303: one rank that all others wait for, again and again."""

from __future__ import annotations

from perfdoc.analyzers.skew.stragglers import FEWEST
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.replay import Gain, Prediction
from perfdoc.results.rules import Evidence
from perfdoc.results.waits import Straggler
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.needs import Missing, Need, over_ranks, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import late_rank
from perfdoc.rules.facts.degrees import PP


def _not_told_apart(case: Case) -> Missing | None:
    found = case.job.skew
    few = not found.stragglers and found.distinguishable < FEWEST
    if few or found.stragglers_state in ("not_distinguishable", "not_compared"):
        return skipped(found.stragglers_reason)
    return None


META = Meta(
    code="PD303",
    title="Straggler",
    why="A collective ends when its last rank comes: one slow rank sets the speed of all.",
    sources=("seed 000", "seed 001"),
    topic="scale",
    time=("waits",),
    needs=(
        over_ranks("several ranks, matched with one another", lambda case: case.job.skew),
        Need(words="arrivals that can be told apart", missing=_not_told_apart),
    ),
    advice=("host_symptom_variation",),
)

MIN_FRAC = 0.01
"""Of the time: what its lateness costs, by replay where there is one."""
_ACROSS_STAGES = ("pp", "other", "unknown")
"""Groups of these may join stages of a pipeline: the schedule lets its first stage end last in every step."""
_NAMELESS = {
    "unknown": "collectives of a group whose dimension is not known",
    "other": "collectives of a group of no one dimension",
}


def evaluate(case: Case) -> Verdict:
    """Fires where a rank comes last beyond chance, at a cost of `MIN_FRAC`. Not by the order in which stages
    of a pipeline end, nor where it only passes on that it waited for others itself."""
    found = case.job.skew
    late = [s for s in found.stragglers if _loss_frac(case, s) >= MIN_FRAC]
    culprits = [s for s in late if s.cause != "waiting" and not _by_schedule(case, s)]
    if not culprits:
        return Verdict(
            state="passes",
            reason=_excused(case, late[0]) if late else "",
            evidence=[
                Evidence(
                    label="collectives whose arrivals can be told apart, of those compared",
                    value=f"{found.distinguishable:,} of {found.compared:,}",
                )
            ],
        )
    worst = max(culprits, key=lambda s: (s.cause == "compute", _loss_frac(case, s)))
    prediction = _prediction(case, worst)
    return Verdict(
        state="fires",
        worst=late_rank(case, worst),
        reason=f"{worst.name} comes last to {_collectives(worst.dimension)}",
        evidence=[
            Evidence(label="comes last to", value=f"{per_cent(worst.recurrence_frac, 0)} of them"),
            Evidence(label="by chance it would be", value=per_cent(worst.chance_frac, 0)),
            Evidence(
                label="others waited for it, summed over collectives that may overlap",
                value=brief(worst.delay_ns),
            ),
        ],
        remedy=f"Look at {worst.name}: {_WHERE[worst.cause]}.",
        gain=_most(case, worst) if prediction is None else prediction.gain,
        verify="Run again, with the rank on another machine: if the machine is the cause, the lateness "
        "stays there.",
        false_alarm="A rank with more work by design: more tokens, or experts that are asked more often.",
    )


_WHERE = {
    "compute": "it computes for longer than the others. Compare its clock, temperature and share of the work",
    "other": "it computes no longer than the others and waits for none of them. Look at what its host does "
    "and at its neighbours on the machine",
}


def _collectives(dimension: str) -> str:
    """`dp` → "DP collectives"."""
    return _NAMELESS.get(dimension) or f"{dimension.upper()} collectives"


def _by_schedule(case: Case, straggler: Straggler) -> bool:
    """Whether the group may hold several stages of a pipeline. Where nobody says whether there is one, groups
    of embeddings and norms may, and groups of unknown dimension are taken not to."""
    if straggler.dimension not in _ACROSS_STAGES:
        return False
    pp = case.degree(PP) or case.job.facts.pp or case.job.pipeline.pp
    return straggler.dimension != "unknown" if pp is None else pp > 1


def _excused(case: Case, straggler: Straggler) -> str:
    who = f"{straggler.name} comes last to {_collectives(straggler.dimension)}"
    if _by_schedule(case, straggler):
        return f"{who}, which stages of a pipeline share: its schedule lets them end one after another"
    return f"{who} because it waited for others itself"


def _prediction(case: Case, straggler: Straggler) -> Prediction | None:
    """What is saved without this rank's lateness, not another's: each dimension is tried for one rank."""
    found = case.prediction(f"without_straggler_{straggler.dimension}")
    ours = found is not None and found.change.startswith(f"{straggler.name} computing as fast as ")
    return found if ours and found is not None and found.mid_ns is not None else None


def _loss_frac(case: Case, straggler: Straggler) -> float:
    """What the replay says that it costs; else the sum of its delays, which counts overlapping ones twice and
    so is the most that it can be."""
    found = _prediction(case, straggler)
    if found is not None and found.mid_ns is not None and found.step_ns:
        return found.mid_ns / found.step_ns
    span = max((r.span_ns[1] - r.span_ns[0] for r in case.ranks), default=0)
    return min(1.0, straggler.delay_ns / span) if span else 0.0


def _most(case: Case, straggler: Straggler) -> Gain | None:
    share = _loss_frac(case, straggler)
    return ceiling(case, lambda r: round(share * r.ledger.window_ns), "the time that others waited for it")
