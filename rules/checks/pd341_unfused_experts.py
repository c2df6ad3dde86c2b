"""One GEMM per expert leaves most of the GPU empty and takes a launch each; so does permuting tokens by
several kernels around the exchange."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.gain import Gain, Of, RankMeasurement
from perfdoc.rules.engine.needs import GPUS, Missing, Need, given, known, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.degrees import EP, NOT_DENSE, experts_of
from perfdoc.rules.facts.graphs import of_parts, without_kernels

_GROUPED, _PERMUTE = "moe_grouped_gemm", "moe_permute_fusion"


def _local(case: Case) -> int | None:
    """Experts of a layer on each GPU."""
    experts, ep = experts_of(case), case.degree(EP)
    return None if experts is None or ep is None or ep < 1 else experts // ep


def _neither_known(case: Case) -> Missing | None:
    if case.setting(_GROUPED)[0] or case.setting(_PERMUTE)[0]:
        return None
    return skipped(f"neither {_GROUPED} nor {_PERMUTE} is known")


META = Meta(
    title="Experts without grouped GEMM or fused permutation",
    action="Use grouped GEMMs and fused permutation for experts",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="moe",
    needs=(
        GPUS,
        NOT_DENSE,
        known("the experts of a GPU", _local, reason="the experts of a GPU are not known"),
        Need(words=f"`{_GROUPED}` or `{_PERMUTE}`", missing=_neither_known),
    ),
    advice=("moe_grouped_gemm", "moe_permute_fusion"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where grouped GEMMs are known to be off with several experts on a GPU, or the
    fused permutation is known to be off."""
    local = given(_local(case))
    evidence = [("experts of a layer on each GPU", str(local))]
    advice = []
    if local > 1 and case.is_set_to(_GROUPED, False):
        gain = _ceiling(case, _gemms_ns, _experts_apart_ns, "the time of the experts' GEMMs")
        why = f"runs the {local} experts of a GPU in one kernel; a guide claims 2 to 3 times for it"
        advice.append(advise(knob=_GROUPED, to=True, why=why, gain=gain))
    if case.is_set_to(_PERMUTE, False):
        gain = _ceiling(case, _sorting_ns, _sorting_apart_ns, "the time of permuting tokens")
        why = "permutes tokens in one fused kernel"
        advice.append(
            advise(knob=_PERMUTE, to=True, why=why, costs="Transformer Engine 2.1 or newer", gain=gain)
        )
    for label, of in (("GEMMs of experts", _gemms_ns), ("permuting tokens", _sorting_ns)):
        if share := case.share(of):
            evidence.append((f"{label}, of the window, mean over ranks", per_cent(share)))
    if not advice:
        return passes(evidence)
    return informs(
        reason=" and ".join(f"{a.knob} is off" for a in advice),
        evidence=evidence,
        advice=advice,
        otherwise="Use the framework's grouped and fused kernels.",
        verify="Run again: fewer kernels between the exchanges of a layer, and the experts' part falls.",
        false_alarm="A version of Transformer Engine without these kernels, or experts of unequal shapes.",
    )


def _gemms_ns(rank: RankMeasurement) -> int:
    return rank.kernel_parts.grouped_linear_ns or 0


_sorting_ns, _sorting_apart_ns = of_parts(lambda p: p.part == "moe_dispatch")
_, _experts_apart_ns = of_parts(lambda p: p.part in ("moe", "moe_experts"))


def _ceiling(case: Case, of: Of, apart: Of, what: str) -> Gain | None:
    """None where no rank shows any of it: then it was not measured apart."""
    known = all(r.kernel_parts.state == "measured" for r in case.ranks) and any(map(of, case.ranks))
    return without_kernels(case, of, apart, what) if known else None
