"""PD902: a capture in which no range names the training steps."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import OWN_WINDOW

META = Meta(
    code="PD902",
    title="No step ranges",
    why="Without steps the whole capture is analysed, start-up and shutdown included, and neither a step "
    "time nor MFU can be given.",
    sources=("DESIGN section 3",),
    topic="capture",
    needs=(OWN_WINDOW,),
)


def evaluate(case: Case) -> Verdict:
    """Fires where a rank fell back to the whole capture though the user asked for nothing else."""
    ranks = case.ranks
    without = [r for r in ranks if r.window.kind == "capture"]
    evidence = [Evidence(label="ranks without steps", value=f"{len(without)} of {len(ranks)}")]
    if not without:
        return Verdict(state="passes", evidence=evidence)
    return Verdict(
        state="fires",
        reason=without[0].window.reason,
        evidence=evidence,
        remedy='Wrap each step: torch.cuda.nvtx.range_push(f"step {n}") … range_pop(), or call '
        "profiler.step(); or name your own ranges with --step-range REGEX.",
        verify="Capture again: the report gives a step time and the number of steps.",
        false_alarm="A program without steps, such as inference: pass --window.",
    )
