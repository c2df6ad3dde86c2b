"""Without sequence parallelism every tensor-parallel rank runs norms and dropout on the whole sequence, and
keeps their inputs. Dividing them moves the same bytes: an all-reduce becomes a reduce-scatter and an
all-gather."""

from perfdoc.knobs.knob import Value
from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import given, known, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.memory_need import layer_activation_bytes, micro_batches_in_flight, tp_of, vpp_of
from perfdoc.rules.facts.memory_relief import stage_layers

_KNOB = "sequence_parallel"


def _divided(case: Case) -> Value:
    """Whether activations between the tensor-parallel parts are; None where that is not known."""
    known, value = case.setting(_KNOB)
    return value if known else case.job.facts.sequence_parallel


META = Meta(
    title="Activations repeated on tensor-parallel ranks",
    action="Turn on sequence parallelism",
    sources=("Megatron-LM guide", "megatron-core notes"),
    topic="memory",
    needs=(
        several(
            "tensor parallelism",
            tp_of,
            one="there is no tensor parallelism",
            unknown="the tensor-parallel degree is not known",
        ),
        known("`sequence_parallel`", _divided, reason=f"{_KNOB} is not known"),
    ),
    advice=("mlm_18", "sp_default", "cp_tldr", "mlm_quick_scale"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where tensor parallelism is known to run without sequence parallelism."""
    tp = given(tp_of(case))
    if _divided(case):
        return passes()
    saved = _saved_bytes(case)
    evidence = []
    if saved is not None:
        evidence.append(("activations saved on each GPU, by formula", gib(saved)))
    why = f"each of {tp} ranks keeps 1/{tp} of these activations, and does 1/{tp} of the norms' work"
    return informs(
        reason="norms and dropout are done, and kept, by every tensor-parallel rank",
        evidence=evidence,
        frees_bytes=saved,
        advice=[advise(knob=_KNOB, to=True, why=why, costs="none known; sequence length divisible by TP")],
        verify="Record a snapshot: the peak is lower; norms and element-wise kernels are shorter.",
        false_alarm="A model whose sequence length does not divide by the degree.",
    )


def _saved_bytes(case: Case) -> int | None:
    """Of all layers of a rank and all micro-batches in flight; None where layers are, or may be,
    recomputed."""
    if not case.is_set_to("recompute_granularity", None) and case.job.facts.recompute != "none":
        return None
    whole = layer_activation_bytes(case, sequence_parallel=False)
    divided = layer_activation_bytes(case, sequence_parallel=True)
    layers, chunks, flight = stage_layers(case), vpp_of(case), micro_batches_in_flight(case)
    if whole is None or divided is None or not layers or not chunks or not flight:
        return None
    return (whole - divided) * layers * chunks * flight
