"""Parallel degrees, the model's sizes, and whether shapes change."""

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.needs import applies, known, to_give
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.hardware import job_nvlink_domain


def shapes_change(case: Case) -> bool:
    """Whether activations are known to: verl packs each batch anew, hybrid context parallelism splits it
    anew, and unpacked samples of fine-tuning differ in length."""
    pack = case.number("sequence_packing_size")
    unpacked = pack is not None and pack <= 0
    anew = case.configuration.dialect == "verl" or case.is_set_to("hybrid_context_parallel", True)
    return anew or unpacked


TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
VPP, EP = "virtual_pipeline_model_parallel_size", "expert_model_parallel_size"
ETP = "expert_tensor_parallel_size"


def degrees_of(case: Case) -> Degrees | None:
    """The job's degrees; None if one that matters is unknown.

    Unknown virtual stages count as one; expert parallelism counts only with experts.
    """
    tp, pp, cp, dp = case.degree(TP), case.degree(PP), case.degree(CP), case.dp
    if tp is None or pp is None or cp is None or dp is None or min(tp, pp, cp, dp) < 1:
        return None
    experts = has_experts(case)
    ep, etp = case.degree(EP), expert_tp(case)
    if experts and (ep is None or etp is None):
        return None
    if experts is False or ep is None or etp is None:
        ep, etp = 1, 1
    vpp = case.degree(VPP) or case.job.facts.vpp or 1
    return Degrees(tp=tp, pp=pp, cp=cp, dp=dp, vpp=vpp, ep=ep or 1, etp=etp or 1)


def why_unknown(case: Case) -> str:
    """Which degrees lack, and what to give."""
    experts = (EP,) if has_experts(case) else ()
    return f"the parallel degrees are not all known: {to_give(case, TP, PP, CP, 'world_size', *experts)}"


DEGREES = known("all parallel degrees", degrees_of, reason=why_unknown)


def has_experts(case: Case) -> bool | None:
    """Whether the model is a mixture of experts; None if unknown."""
    known, experts = case.setting("num_moe_experts")
    if known:
        return isinstance(experts, int) and experts > 1
    model = case.job.facts.model
    if model is not None:
        return bool(model.experts)
    return True if (case.degree(EP) or 1) > 1 else None


NOT_DENSE = applies(
    "a model with experts, or unknown",
    lambda case: has_experts(case) is not False,
    "the model has no experts",
)
EXPERTS_SPREAD = applies(
    "an expert-parallel degree above 1, or unknown",
    lambda case: has_experts(case) is not False and case.degree(EP) != 1,
    "there is no expert parallelism",
)
EXPERTS = known("whether the model has experts", has_experts)


def experts_of(case: Case) -> int | None:
    """Routed experts of a layer; None if unknown or dense."""
    known, experts = case.setting("num_moe_experts")
    if known:
        return experts if isinstance(experts, int) and experts > 1 else None
    model = case.job.facts.model
    return None if model is None else model.experts


def expert_tp(case: Case) -> int | None:
    """Tensor-parallel degree of experts: by default that of the other layers. With TP 1 an unknown degree
    counts as 1: experts alone are not split."""
    known, value = case.setting(ETP)
    if (known and value is None) or (not known and case.degree(TP) == 1):
        return case.degree(TP)
    return case.number(ETP)


def nvlink_domain(case: Case) -> int | None:
    """GPUs of the job in one NVLink domain; None if unknown."""
    return job_nvlink_domain(case.gpu, case.number("nproc_per_node"))


NVLINK = known(
    "the GPUs of an NVLink domain", nvlink_domain, reason="the size of the NVLink domain is not known"
)


def leaves_nvlink(case: Case) -> bool:
    """Whether tensor-parallel groups are known to exceed the NVLink domain, or not to divide it."""
    tp, domain = case.degree(TP), nvlink_domain(case)
    return tp is not None and domain is not None and (tp > domain or domain % tp != 0)


def layers_of(case: Case) -> int | None:
    """Layers of the decoder."""
    return _size(case, "num_layers", "layers")


def hidden_size_of(case: Case) -> int | None:
    """Width of the residual stream."""
    return _size(case, "hidden_size", "hidden_size")


def heads_of(case: Case) -> int | None:
    """Query heads of a layer."""
    return _size(case, "num_attention_heads", "attention_heads")


def sequence_of(case: Case) -> int | None:
    """Tokens of a sequence."""
    given = case.number("seq_length") or case.job.facts.sequence_length
    return given or _size(case, "seq_length", "sequence_length") or None


def _size(case: Case, knob: str, of_model: str) -> int | None:
    """By the settings, else by the model's shape."""
    found = case.number(knob)
    return getattr(case.job.facts.model, of_model, None) if found is None else found


def uses_fsdp(case: Case) -> bool:
    """Whether weights are known to be sharded over data-parallel ranks."""
    return case.is_set_to("use_torch_fsdp2", True) or case.is_set_to("use_megatron_fsdp", True)


def divisors(number: int) -> list[int]:
    """Ascending, up to 65,536: no group has more ranks, and a settings file may hold any number."""
    return [n for n in range(1, min(number, 1 << 16) + 1) if number % n == 0]


_NEED_A_GROUP = ("tp_comm_overlap", "sequence_parallel")
"""The overlap needs sequence parallelism, so it is switched off first."""


def without_tensor_ranks(case: Case) -> list[Advice]:
    """Switches off every setting known to be on that needs a tensor-parallel group."""
    why = "there is no tensor-parallel group"
    return [advise(knob=knob, to=False, why=why) for knob in _NEED_A_GROUP if case.is_set_to(knob, True)]
