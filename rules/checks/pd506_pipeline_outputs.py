"""PD506: outputs of pipeline stages that live on after they were sent."""

from __future__ import annotations

from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.model_memory import layer_input_bytes, micro_batches_in_flight, pp_of

META = Meta(
    code="PD506",
    title="Pipeline outputs kept after sending",
    why="A stage's output lies in memory until its backward, though only its graph is still wanted: one "
    "tensor for every micro-batch in flight.",
    sources=("seed 003",),
    topic="memory",
    needs=("settings",),
    advice=("pp_dealloc",),
)

_KNOB = "deallocate_pipeline_outputs"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where several pipeline stages are known to keep their outputs."""
    pp = pp_of(case)
    if pp == 1:
        return Verdict(state="not_applicable", reason="there is no pipeline")
    if case.configuration.dialect in ("megatron_lm", "megatron_bridge"):
        return Verdict(state="not_applicable", reason="this trainer frees them by itself")
    known, value = case.setting(_KNOB)
    if pp is None or not known:
        return Verdict(
            state="skipped", reason=f"{'the number of stages' if pp is None else _KNOB} is not known"
        )
    if value is not False:
        return Verdict(state="passes")
    each, flight = layer_input_bytes(case), micro_batches_in_flight(case)
    held = [] if not each or not flight else [Evidence(label="held, by formula", value=gib(each * flight))]
    return Verdict(
        state="fires",
        level="information",
        reason=f"{pp} stages keep outputs that have been sent",
        evidence=held,
        advice=[
            advise(knob=_KNOB, to=True, why="a sent output is replaced by an empty one until its backward")
        ],
        verify="Record a snapshot: the peak of all but the last stage is lower.",
        false_alarm="A trainer that sets it by itself, as Megatron-LM and Megatron-Bridge do.",
    )
