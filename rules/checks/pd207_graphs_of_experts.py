"""PD207: CUDA graphs of layers whose experts get inputs of changing shapes."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.graphs import static_scope

META = Meta(
    code="PD207",
    title="Dropless experts inside CUDA graphs",
    why="A graph replays the shapes that it was captured with. Without a capacity, experts get another "
    "number of tokens in each step, so that only what lies beside them can be captured.",
    sources=("seed 000", "seed 001"),
    topic="host_overhead",
    needs=("settings",),
    advice=("host_cuda_graph_moe",),
)

_IMPL, _SCOPE = "cuda_graph_impl", "cuda_graph_scope"
_WHOLE = (None, "full", (), ("full",), "full_iteration", ("full_iteration",))


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where whole layers of a model with dropless experts are known to be captured."""
    known, impl = case.setting(_IMPL)
    if not known:
        return Verdict(state="skipped", reason=f"{_IMPL} is not known")
    if impl in (None, "none"):
        return Verdict(state="not_applicable", reason="nothing is captured in CUDA graphs")
    scope = static_scope(case)
    if scope is None:
        return Verdict(
            state="skipped", reason="whether the model has experts, and their capacity, is not known"
        )
    if not scope:
        return Verdict(state="not_applicable", reason="all shapes of a layer are static")
    known, now = case.setting(_SCOPE)
    if not known:
        return Verdict(state="skipped", reason=f"{_SCOPE} is not known")
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
