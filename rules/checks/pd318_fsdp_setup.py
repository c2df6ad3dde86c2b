"""With a single hardware queue FSDP's all-gathers wait behind the compute that should hide them; PyTorch's
FSDP2 copies parameters to and from its communication buffers, megatron-core's FSDP does not."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.degrees import uses_fsdp
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns
from perfdoc.rules.facts.work_queues import MANY, MEGATRON, NEMO, QUEUES, TORCH, megatron_fsdp, wants_several


def _no_fsdp(case: Case) -> Missing | None:
    if uses_fsdp(case):
        return None
    if case.setting(TORCH)[0] and case.setting(MEGATRON)[0]:
        return not_applicable("FSDP is off")
    return skipped("whether FSDP is used is not known")


META = Meta(
    title="FSDP setup with avoidable copies or waits",
    action="Correct the FSDP setup",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="parallel_mapping",
    needs=(GPUS, Need(words="FSDP", missing=_no_fsdp), WINDOW),
    advice=("fsdp_megatron_better",),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if PyTorch's FSDP is used; and if FSDP runs with CUDA_DEVICE_MAX_CONNECTIONS=1
    on GPUs that PD112 cannot judge, then a problem if exposed DP communication takes `exposed.MIN_FRAC` of
    the time."""
    share = given(case.share(exposed_ns("dp")))
    evidence = [("exposed DP communication, mean over ranks", per_cent(share))]
    advice, reasons = [], []
    one_queue = case.is_set_to(QUEUES, 1) and not wants_several(case)
    if one_queue:
        advice.append(advise(knob=QUEUES, to=MANY, why="lets all-gathers overlap with compute"))
        reasons.append("all-gathers share one hardware queue with compute")
    if case.is_set_to(TORCH, True):
        copies = case.share(lambda r: r.ledger.exposed_memcpy) or 0.0
        evidence.append(("exposed copies, mean over ranks", per_cent(copies)))
        excluded = advise(knob=TORCH, to=False, why="the two exclude each other")
        first = [] if case.is_set_to(NEMO, "pytorch") else [excluded]
        advice += megatron_fsdp(case, "communicates from persistent buffers, with fewer copies", first)
        reasons.append("PyTorch's FSDP2 is used; a guide finds megatron-core's faster")
    if not reasons:
        return passes(evidence)
    return fires(
        level="problem" if one_queue and share >= MIN_FRAC else "information",
        reason="; ".join(reasons),
        evidence=evidence,
        advice=advice,
        otherwise="Keep FSDP2 if the framework supports no other, with several hardware queues.",
        verify="Run again: exposed DP communication and copies fall, tokens per second rise.",
        false_alarm="A framework without megatron-core's FSDP: one of the guides covers FSDP2 only.",
    )
