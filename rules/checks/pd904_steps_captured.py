"""One step shows no variation, and may be the one that logs or saves; hundreds make files of gigabytes and a
profiler that slows the run."""

from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import OWN_WINDOW


def _no_steps(case: Case) -> Missing | None:
    everywhere = case.ranks and all(r.window.kind == "steps" for r in case.ranks)
    return None if everywhere else skipped("steps are not known (see PD902)")


META = Meta(
    title="Too few or too many captured steps",
    action="Capture three to ten steps",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="profiling",
    needs=(OWN_WINDOW, Need(words="whole steps of every rank", missing=_no_steps)),
    for_servers=True,
)

MIN_STEPS = 2
"""Whole steps of each rank: what is compared over steps needs two."""
MAX_STEPS = 50
"""Of a rank."""
STEPS = 4
"""To capture."""
_START, _END = "profile_step_start", "profile_step_end"


def _staggered(case: Case) -> bool:
    """Whether ranks mostly wait for one whose window begins late: a straggler, or captured later."""
    late = case.job.skew.latest
    return len(case.ranks) > 1 and late is not None and late.cause == "before"


def evaluate(case: Case) -> Verdict:
    """Fires where a rank's window has fewer than `MIN_STEPS` or more than `MAX_STEPS`; as information, unless
    ranks begin one after another, which one step cannot tell from a straggler."""
    counts = [r.window.steps for r in case.ranks]
    fewest, most = min(counts), max(counts)
    evidence = [("steps of a rank", str(most) if fewest == most else f"{fewest} to {most}")]
    if fewest >= MIN_STEPS and most <= MAX_STEPS:
        return passes(evidence)
    few = fewest < MIN_STEPS
    start = case.number(_START)
    advice = []
    if start is not None:
        why = f"{STEPS} steps show what varies, and stay small"
        advice.append(advise(knob=_END, to=start + STEPS, why=why))
    return fires(
        level="problem" if few and _staggered(case) else "information",
        reason="one step cannot be compared with another" if few else "few steps show as much",
        evidence=evidence,
        remedy=f"Capture the same {STEPS} steady steps on a few ranks, one of each pipeline stage.",
        advice=advice,
        verify="Capture again: step times show a spread.",
        false_alarm="A capture of one slow step, taken on purpose.",
    )
