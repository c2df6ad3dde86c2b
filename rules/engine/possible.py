"""Whether a job can have a simulated change, as far as its settings are known."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import own_rules, verdict_of
from perfdoc.rules.facts.framework import may_have_megatrons_buckets
from perfdoc.rules.facts.graphs import why_no_graphs
from perfdoc.rules.facts.loading import loads_ahead
from perfdoc.rules.facts.precision import unpacking
from perfdoc.simulator.replay.proposals import CHANGES

_NOT_MEGATRONS: Mapping[str, str] = MappingProxyType(
    {
        "overlapped_tp": "megatron-core does this without a setting; tp_comm_overlap hides more",
        "overlapped_ep": "megatron-core sends no halves: overlap_moe_expert_parallel_comm hides tokens under "
        "another micro-batch",
    }
)
"""Changes that none of its settings makes."""


def why_not(case: Case, key: str, ways: Sequence[Mapping[str, Value]]) -> str:
    """Why a change cannot be made; empty where it can, or nothing is known that speaks against it.

    key: of its prediction. ways: settings that make it, any of which will do. case: without predictions yet.
    """
    if key == "without_launches" and (reason := why_no_graphs(case)):
        return reason
    if key == "without_data" and loads_ahead(case):
        return "worker processes load already, and nothing shows that they can be fast enough"
    if key == "without_launches" and case.program.vendor == "intel":
        return "PyTorch captures no graphs on these GPUs"
    if key == "fused_optimizer" and "fused_optimizer" in case.program.marks and not case.program.optimizers:
        return "done already: a fused optimizer runs"
    if key == "fp8_gemm" and case.setting("fp8")[1] is not None:
        return "set already: fp8"
    if key == "fp8_gemm" and (unpacks := unpacking(case)):
        return f"weights are kept in fewer bits, and unpacked for each product ({unpacks})"
    if key == "dp_half_bytes" and case.job.facts.dtype == "fp32":
        return "gradients are of the weights' type, fp32"
    if case.framework == "megatron" and key in _NOT_MEGATRONS:
        return _NOT_MEGATRONS[key]
    if key.startswith("buckets_") and (reason := _why_no_buckets(case)):
        return reason
    reasons = [_against(case, way) for way in ways]
    return "" if not all(reasons) else next(iter(reasons), "")


def why_left_out(case: Case, key: str, ways: Sequence[Mapping[str, Value]]) -> str:
    """Why a change is none of the things to do: it cannot be made, or its rule could not judge what it takes
    away."""
    return why_not(case, key, ways) or _not_judged(case, key)


def _not_judged(case: Case, key: str) -> str:
    """Why no gain of it is advised: its rule is skipped, or that time has another cause."""
    for rule in own_rules():
        if key in CHANGES and rule.meta.code == CHANGES[key].rule:
            if (code := rule.meta.code) not in case.unjudged:
                verdict = verdict_of(rule, case)
                said = ""
                if "idle.waits" in (verdict.time or ()):  # fewer launches do not help
                    said = "fires"
                elif verdict.state == "skipped":
                    said = "is skipped"
                elif verdict.is_elsewhere:
                    said = "passes"
                case.unjudged[code] = f"{code} {said}: {verdict.reason}" if said else ""
            return case.unjudged[code]
    return ""


def _why_no_buckets(case: Case) -> str:
    """Megatron-core makes one bucket of all gradients unless they overlap, and of those of later stages."""
    if not may_have_megatrons_buckets(case.framework):
        return ""
    if case.is_set_to("overlap_grad_reduce", False):
        return "bucket_size has no effect without overlap_grad_reduce"
    if (case.degree("pipeline_model_parallel_size") or case.job.stages or 1) > 1:
        return "with pipeline stages bucket_size has no effect on most of them"
    return ""


def _against(case: Case, way: Mapping[str, Value]) -> str:
    """The first knob is the switch, the others are what it needs."""
    first = next(iter(way))
    otherwise = any(known and now != way[knob] for knob in way for known, now in (case.setting(knob),))
    if case.is_set_to(first, way[first]) and not otherwise:
        return f"set already: {first}"
    found = check(case.configuration, way)
    return f"this configuration forbids it: {found[0].words}" if found else ""
