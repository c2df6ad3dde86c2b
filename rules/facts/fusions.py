"""The operator fusions that a configuration can switch, and where each switch applies."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfdoc.knobs.load import catalogue
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.rule import Case

IMPL, LOSS = "cross_entropy_fusion_impl", "cross_entropy_loss_fusion"


def _always(case: Case) -> bool:
    return True


FUSIONS: Mapping[str, tuple[str, Callable[[Case], bool]]] = MappingProxyType(
    {
        LOSS: ("the loss over the vocabulary without full-size intermediates", _always),
        "gradient_accumulation_fusion": (
            "the weight-gradient GEMM accumulates into the fp32 gradient; needs Apex or Transformer Engine",
            # FSDP has its own gradient buffers, which the fused GEMM does not accumulate into.
            lambda case: (
                not any(case.is_set_to(f"use_{kind}", True) for kind in ("torch_fsdp2", "megatron_fsdp"))
            ),
        ),
        "bias_activation_fusion": ("bias and activation in one kernel", _always),
        "bias_dropout_fusion": ("bias, dropout and residual in one kernel", _always),
        "apply_rope_fusion": (
            "rotary embedding in one kernel",
            lambda case: not case.is_set_to("multi_latent_attention", True),  # experimental there
        ),
        "persist_layer_norm": (
            "a norm that keeps its rows on the SM; needs Apex",
            lambda case: case.is_set_to("transformer_impl", "local"),  # Transformer Engine's are fused
        ),
    }
)
"""Knob → what it does, and whether it applies to this job. Fused masks and softmax belong to PD405: fused
attention includes them."""


def fused_attention() -> Advice:
    """The backend that Transformer Engine chooses."""
    return advise(
        knob="attention_backend",
        to="auto",
        why="the fastest fused attention that this GPU has, without a sequence x sequence matrix",
        costs="numerics of another kernel",
    )


def known_off(case: Case, knob: str) -> bool:
    """Whether a fusion is known to be off: set so, or unset under verl, whose own files set none and keep
    megatron-core's default. verl's other engines read none of them."""
    if case.configuration.dialect == "verl" and case.framework != "megatron":
        return False
    known, value = case.setting(knob)
    if known:
        return value is False and knob not in case.assumed
    configuration = case.configuration
    return (
        configuration.dialect == "verl"
        and knob not in configuration.unknown
        and catalogue()[knob].defaults.get("verl") is False
    )
