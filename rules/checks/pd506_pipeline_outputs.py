"""A stage's output lies in memory until its backward, though only its graph is still wanted: one tensor for
every micro-batch in flight."""

from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import applies, given, known, setting, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.memory_need import layer_input_bytes, micro_batches_in_flight, pp_of

_KNOB = "deallocate_pipeline_outputs"

META = Meta(
    title="Pipeline outputs kept after sending",
    action="Free pipeline outputs after sending",
    sources=("Megatron-LM guide",),
    topic="memory",
    needs=(
        several("a pipeline degree above 1, or unknown", pp_of, one="there is no pipeline"),
        applies(
            "another trainer than Megatron-LM and Megatron-Bridge",
            lambda case: case.configuration.dialect not in ("megatron_lm", "megatron_bridge"),
            "this trainer frees them anyway",
        ),
        known("the number of stages", pp_of),
        setting(_KNOB),
    ),
    advice=("pp_dealloc",),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where several pipeline stages are known to keep their outputs."""
    pp = given(pp_of(case))
    if not case.is_set_to(_KNOB, False):
        return passes()
    each, flight = layer_input_bytes(case), micro_batches_in_flight(case)
    held = [] if not each or not flight else [("held, by formula", gib(each * flight))]
    return informs(
        reason=f"{pp} stages keep outputs that have been sent",
        evidence=held,
        advice=[
            advise(knob=_KNOB, to=True, why="a sent output is replaced by an empty one until its backward")
        ],
        verify="Record a snapshot: the peak of all but the last stage is lower.",
        false_alarm="A trainer that sets it, as Megatron-LM and Megatron-Bridge do.",
    )
