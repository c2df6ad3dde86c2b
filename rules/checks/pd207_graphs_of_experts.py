"""A CUDA graph replays static shapes. Without a capacity, experts get a different number of tokens in each
step, so only the rest of the layer can be captured."""

from perfdoc.rules.engine.advise import advise, needing
from perfdoc.rules.engine.needs import applies, given, known, setting
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.graphs import seen_without, static_scope

_IMPL, _SCOPE = "cuda_graph_impl", "cuda_graph_scope"

META = Meta(
    title="Dropless experts inside CUDA graphs",
    action="Leave dropless experts out of CUDA graphs",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="host_overhead",
    needs=(
        applies(
            "CUDA graphs",
            lambda case: case.setting(_IMPL)[0] or not seen_without(case),
            "no CUDA graph launches anything in the captures",
        ),
        setting(_IMPL),
        applies(
            "CUDA graphs", lambda case: case.setting(_IMPL)[1] not in (None, "none"), "CUDA graphs are off"
        ),
        known(
            "whether the model has experts, and their capacity",
            static_scope,
            reason="whether the model has experts, and their capacity, is not known",
        ),
        applies(
            "layers with dynamic shapes",
            lambda case: bool(static_scope(case)),
            "all shapes of a layer are static",
        ),
        setting(_SCOPE),
    ),
    advice=("host_cuda_graph_moe",),
)

_WHOLE = (None, "full", (), ("full",), "full_iteration", ("full_iteration",))


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if whole layers of a model with dropless experts are known to be captured."""
    scope, now = given(static_scope(case)), case.setting(_SCOPE)[1]
    evidence = [("captured", "whole layers" if now in _WHOLE else str(now))]
    if now not in _WHOLE:
        return passes(evidence)
    why = "the parts of a layer with static shapes"
    return informs(
        reason="whole layers are captured, including experts with dynamic shapes",
        evidence=evidence,
        advice=needing(
            advise(knob=_IMPL, to="transformer_engine", why="captures parts of a layer"),
            then=[advise(knob=_SCOPE, to=scope, why=why)],
        ),
        otherwise="Set an expert capacity and pad inputs to it, or switch CUDA graphs off.",
        verify="Run again: the host section shows the share of kernels launched by graphs.",
        false_alarm="Every expert gets the same number of tokens, by construction of the data.",
    )
