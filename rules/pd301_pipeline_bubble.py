"""PD301: pipeline stages that wait for the schedule."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD301",
    title="Pipeline bubble",
    why="Stages idle while the pipeline fills and drains: (pp - 1) / (vpp x micro-batches) of the work, "
    "however "
    "fast the kernels are.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="pipeline",
    needs=(
        "ranks",
        "steps",
    ),
    advice=(
        "pp_raise_m_vpp",
        "pp_bubble_formula",
    ),
)

MIN_FRAC = 0.05
"""Of the step."""
MAX_VPP = 8


def evaluate(case: Case) -> Verdict:
    """Fires where the bubble takes `MIN_FRAC` of the step."""
    found = case.job.pipeline
    if found.state != "measured" or found.bubble_frac is None:
        known, pp = case.setting("pipeline_model_parallel_size")
        if known and pp == 1:
            return Verdict(state="not_applicable", reason="there is no pipeline")
        return Verdict(state="skipped", reason=found.reason or "the bubble was not measured")
    evidence = [Evidence(label="bubble, of the step", value=f"{found.bubble_frac:.1%}")]
    if found.ideal_bubble_frac is not None:
        evidence.append(
            Evidence(label="with equal stages it would be", value=f"{found.ideal_bubble_frac:.1%}")
        )
    if found.bubble_frac < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    return Verdict(
        state="fires",
        reason="stages wait for the pipeline to fill and drain",
        evidence=evidence,
        remedy="More micro-batches per step make the bubble smaller; so does a smaller micro-batch at the "
        "same "
        "global batch, as long as its kernels stay efficient.",
        advice=_advice(case, found.vpp),
        verify="Run again: the bubble in the pipeline section falls by more than transfers grow.",
        false_alarm="Stages of unequal length make idle time that more virtual stages do not remove.",
    )


def _advice(case: Case, vpp: int | None) -> list[Advice]:
    """Twice the chunks, where layers divide; only where the replay says that it gains."""
    prediction = case.prediction("more_virtual_stages")
    if prediction is None or not (prediction.gain.low_ms or 0.0) > 0:
        return []
    known, setting = case.setting("virtual_pipeline_model_parallel_size")
    now = setting if known and isinstance(setting, int) else 1 if known else vpp or 1
    if now != (case.job.facts.vpp or 1):
        return []  # another change than the one that was replayed
    to = 2 * now
    layers = case.setting("num_layers")[1]
    pp = case.setting("pipeline_model_parallel_size")[1]
    whole = isinstance(layers, int) and isinstance(pp, int) and layers % (pp * to) == 0
    if not whole or to > MAX_VPP:
        return []
    why = f"each stage holds {to} chunks instead of {now}, so that the pipeline fills in half the time"
    costs = "twice the messages between stages, and some memory"
    gain = prediction.gain
    return [Advice(knob="virtual_pipeline_model_parallel_size", to=to, why=why, costs=costs, gain=gain)]
