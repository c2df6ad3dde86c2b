"""PD207: CUDA graphs of layers whose experts get inputs of changing shapes."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import applies, given, known, setting
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.graphs import static_scope

_IMPL, _SCOPE = "cuda_graph_impl", "cuda_graph_scope"

META = Meta(
    code="PD207",
    title="Dropless experts inside CUDA graphs",
    why="A graph replays the shapes that it was captured with. Without a capacity, experts get another "
    "number of tokens in each step, so that only what lies beside them can be captured.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    needs=(
        setting(_IMPL),
        applies(
            "CUDA graphs",
            lambda case: case.setting(_IMPL)[1] not in (None, "none"),
            "nothing is captured in CUDA graphs",
        ),
        known(
            "whether the model has experts, and their capacity",
            static_scope,
            reason="whether the model has experts, and their capacity, is not known",
        ),
        applies(
            "layers with shapes that change",
            lambda case: bool(static_scope(case)),
            "all shapes of a layer are static",
        ),
        setting(_SCOPE),
    ),
    advice=("host_cuda_graph_moe",),
)

_WHOLE = (None, "full", (), ("full",), "full_iteration", ("full_iteration",))


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where whole layers of a model with dropless experts are known to be captured."""
    scope, now = given(static_scope(case)), case.setting(_SCOPE)[1]
    evidence = [Evidence(label="captured", value="whole layers" if now in _WHOLE else str(now))]
    if now not in _WHOLE:
        return Verdict(state="passes", evidence=evidence)
    why = "the parts of a layer whose shapes stay the same"
    return Verdict(
        state="fires",
        level="information",
        reason="whole layers are captured, experts of changing shapes included",
        evidence=evidence,
        advice=[
            advise(knob=_IMPL, to="transformer_engine", why="captures parts of a layer"),
            advise(knob=_SCOPE, to=scope, why=why),
        ],
        otherwise="Give the experts a capacity and pad their inputs to it, or switch graphs off.",
        verify="Run again: the host section shows the share of kernels that graphs launch.",
        false_alarm="Inputs that the data loader makes alike for every expert.",
    )
