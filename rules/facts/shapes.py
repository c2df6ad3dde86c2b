"""Whether tensors change shape from step to step."""

from __future__ import annotations

from perfdoc.rules.engine.case import Case


def shapes_change(case: Case) -> bool:
    """Whether activations are known to: verl packs each batch anew, hybrid context parallelism splits it
    anew, and unpacked samples of fine-tuning differ in length."""
    pack = case.number("sequence_packing_size")
    unpacked = pack is not None and pack <= 0
    anew = case.configuration.dialect == "verl" or case.is_set_to("hybrid_context_parallel", True)
    return anew or unpacked
