"""GEMMs read FP8, so that weights in bf16 are copies: twice the memory, twice the bytes to gather, and a cast
in each step."""

from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import applies, setting
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.memory_need import parameters_per_rank
from perfdoc.rules.facts.memory_room import rooms
from perfdoc.rules.facts.precision import FP8, fp8_gather

_GATHER, _REUSE = "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"

META = Meta(
    title="16-bit weights under FP8 training",
    action="Keep weights in FP8",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="memory",
    needs=(
        FP8,
        setting(_GATHER),
        applies(
            "another FSDP than PyTorch's, or none",
            lambda case: not case.is_set_to("use_torch_fsdp2", True),
            "PyTorch's FSDP2 gathers bf16 whatever is set",
        ),
    ),
    advice=("keep_fp8_params", "mem_mxfp8_share"),
)

SAVED_BYTES = 1
"""Of a parameter: FP8 instead of bf16."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where FP8 training is known to keep its weights in bf16, or the mxfp8 recipe to
    gather them into a buffer of their own."""
    # Megatron FSDP has buffers of its own, which the switch does not reach.
    fine = case.is_set_to("fp8_recipe", "mxfp8") and not case.is_set_to("use_megatron_fsdp", True)
    if case.is_set_to(_GATHER, False):
        return _copies(case, fine)
    if fine and case.is_set_to(_REUSE, False):
        why = "the gathered weights land in the gradient buffer, which is free then: up to half of the "
        why += "parameter buffer"
        return informs(
            reason="mxfp8 weights are gathered into a buffer of their own",
            advice=[advise(knob=_REUSE, to=True, why=why)],
            verify="Record a snapshot: parameter buffers are smaller.",
            false_alarm="Free memory: then nothing is gained.",
        )
    return passes()


_WHICH = (
    "Which recipe scales the weights is not known, or it is one of the program's own. Where its weights can "
    "be kept in FP8 (delayed, tensorwise, blockwise, mxfp8), set fp8_param_gather."
)


def _copies(case: Case, fine: bool) -> Verdict:
    count = parameters_per_rank(case)
    evidence = []
    if count is not None:
        evidence.append(("saved on each GPU, at most", gib(count * SAVED_BYTES)))
    held = max((r.category_bytes("parameters") for r in rooms(case)), default=0)
    if held:
        evidence.append(("parameters at the peak, at least", gib(held)))
    needs = fp8_gather(case)
    costs = f"needs {needs}" if needs else ""
    why = "weights are cast once, by the optimizer, and gathered in FP8"
    advice = [] if needs is None else [advise(knob=_GATHER, to=True, why=why, costs=costs)]
    if fine:
        advice.append(
            advise(knob=_REUSE, to=True, why="mxfp8 needs the gradient buffer for the gathered weights")
        )
    return informs(
        reason="weights are kept in bf16 and multiplied in FP8",
        evidence=evidence,
        frees_bytes=None if count is None else count * SAVED_BYTES,
        advice=advice,
        remedy="" if advice else _WHICH,
        verify="Record a snapshot: parameters are smaller; all-gathers carry half the bytes.",
        false_alarm="Weights that are kept in bf16 on purpose, for the accuracy of the first steps.",
    )
