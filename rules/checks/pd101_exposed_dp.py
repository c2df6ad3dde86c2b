"""Gradient reduction can overlap with the backward pass, the weights all-gather with the forward pass. What
stays exposed lengthens every step, on every rank."""

from collections.abc import Sequence

from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.gain import Gain, at_most, predicted
from perfdoc.rules.engine.needs import WINDOW
from perfdoc.rules.engine.rule import Case, Level, Meta, Verdict, fires, passes
from perfdoc.rules.facts.degrees import CP, TP
from perfdoc.rules.facts.exposed import (
    WITH_WAITS,
    ceiling_of_transfer,
    communication,
    hidden_frac,
    judged,
    surely_saved,
)
from perfdoc.rules.facts.framework import may_have_megatrons_buckets
from perfdoc.rules.facts.gradient_sums import (
    MANY_RANKS,
    NOTHING_GAINED,
    OTHER_BUCKETS,
    action_with_ddp,
    bucket_elements,
    can_accumulate_in_fp32,
    gain_with_ddp,
    gains_nothing,
    keeps_precision,
    less_of_shards,
    reduces_with_ddp,
    seldom_summed,
    sends_fp32,
    settings_of_ddp,
    summed_too_often,
    summing_ranks,
    sums_in_16_bits,
    usual_elements,
)
from perfdoc.rules.facts.precision import fp8_gather
from perfdoc.rules.facts.work_queues import MANY, QUEUES

META = Meta(
    title="Exposed data-parallel communication",
    action="Overlap data-parallel communication with compute",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="comm_overlap",
    time=("exposed_comm.dp",),
    with_it=WITH_WAITS,
    needs=(WINDOW, communication("dp")),
    advice=(
        "dp_overlap",
        "dp_bucket_bigger",
        "dp_bucket_pp_fixed",
        "fsdp_bucket_default",
        "cd_bf16_reduce",
        "cd_fp8_gather",
        "scale_dp_three_levers",
        "mlm_quick_scale",
    ),
)

WORTH_FRAC = 0.02
"""Of a step: upper end of a change's predicted gain, if overlap is not known to be off."""
HIDDEN_FRAC = 0.25
"""Of this communication: with a smaller hidden share it stays a problem."""
_TRIED = ("overlapped_dp", "buckets_x4", "buckets_x0.25")
_VERIFY = "Run again: exposed DP communication in the ledger and the step time fall by the same amount."
_FALSE_ALARM = (
    "One micro-batch; or a late rank, if ranks were not compared: then the wait is exposed, not the transfer."
)


_NO_SYNC = "Reduce gradients once for all micro-batches"


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks.

    Bucket sizes follow the replay's fit of time over bytes, in elements; not with a pipeline, whose later
    stages and chunks ignore the size. A bf16 reduction over 128 ranks or more is advised only with fp32
    accumulation.
    """
    nothing, evidence = judged(case, "dp")
    if nothing is not None:
        return nothing
    overlaps = _overlaps(case)
    queues = [advise(knob=QUEUES, to=MANY, why=ONE_QUEUE)] if _in_one_queue(case) else []
    advice = [*queues, *overlaps, *_buckets(case), *_narrower_sums(case), *_narrower_weights(case)]
    ddp = reduces_with_ddp(case)
    often = summed_too_often(case) if ddp else ""
    if ddp and not advice and not often and gains_nothing(case):
        return passes(evidence, NOTHING_GAINED)
    unadvised = _unadvised(case, ddp=ddp)
    return fires(
        level=_level(case, advice),
        reason=_reason(case, advice),
        evidence=evidence,
        advice=advice,
        action=_NO_SYNC if often else action_with_ddp(case) if ddp and not overlaps else "",
        remedy=" ".join(w for w in ("" if advice else unadvised, *_held_back(case, ddp=ddp)) if w),
        otherwise=_UNADVISED,
        gain=(gain_with_ddp(case) if ddp and not advice and not often else None)
        or ceiling_of_transfer(case, "dp", by_overlap=_hides_alone(case, advice)),
        verify=_VERIFY,
        false_alarm=_FALSE_ALARM,
    )


def _level(case: Case, advice: Sequence[Advice]) -> Level:
    """Information if part of it is hidden and neither overlap, nor buckets, nor the advice has a large
    predicted gain: the job then has too little compute to hide it."""
    tried = [p for key in _TRIED if (p := case.prediction(key)) is not None and p.high_ns is not None]
    gains = [*(p.gain for p in tried), *(a.gain for a in advice if a.gain is not None)]
    worth = any((g.high_ms or 0.0) >= WORTH_FRAC * (case.unit_ms or 0.0) for g in gains)
    off = any(a.knob in (_GRADIENTS, _WEIGHTS) for a in advice)
    little = (hidden_frac(case, "dp") or 0.0) < HIDDEN_FRAC
    return "problem" if off or not tried or worth or little else "information"


def _reason(case: Case, advice: Sequence[Advice]) -> str:
    """The cause: too little compute, if it is overlapped already and no advice removes half of it."""
    exposed = ceiling_of_transfer(case, "dp")
    best = max((a.gain.mid_ms or 0.0 for a in advice if a.gain is not None), default=0.0)
    mended = exposed is None or best >= (exposed.high_ms or 0.0) / 2
    if reduces_with_ddp(case) and not advice:
        return "overlapped by DDP, not hidden by compute"
    if mended or not case.is_set_to(_GRADIENTS, True) or case.is_set_to(_WEIGHTS, False):
        return "not hidden by compute"
    if _in_one_queue(case):
        return f"switched on, but {ONE_QUEUE}"
    count = case.micro_batches
    of = "" if count is None else f" of {count} micro-batch{'es' if count != 1 else ''}"
    return f"overlapped, but the compute{of} is too short to hide it"


_OTHERWISE = (
    "More compute per step, such as more micro-batches, hides more. Waiting for a late rank counts too: see "
    "Skew and stragglers below."
)
_GIVE = "Give the job's configuration (--config FILE)"
_UNADVISED = f"{_OTHERWISE} No known setting of the overlap is left to change."
_GRADIENTS, _WEIGHTS = "overlap_grad_reduce", "overlap_param_gather"
_RELEVANT = (_GRADIENTS, _WEIGHTS, "bucket_size", "grad_reduce_in_fp32")


ONE_QUEUE = "one hardware queue starts kernels in the order of their launches, also the reductions"


def _in_one_queue(case: Case) -> bool:
    """Whether the overlap is on, next to nothing is hidden, and no tensor or context parallelism wants the
    one queue that is known to be set."""
    alone = case.degree(TP) == 1 and case.degree(CP) == 1
    hidden = hidden_frac(case, "dp") or 0.0
    return alone and case.is_set_to(QUEUES, 1) and case.is_set_to(_GRADIENTS, True) and hidden < HIDDEN_FRAC


def _overlaps(case: Case) -> list[Advice]:
    """Only overlaps known to be off. The replay overlaps gradients and weights together."""
    found: list[Advice] = []
    if case.is_set_to("use_torch_fsdp2", True) or seldom_summed(case):
        return found  # FSDP2 overlaps by itself, and is refused beside these
    gain = predicted(case, "overlapped_dp")
    sharded = case.is_set_to("use_distributed_optimizer", True)
    if _overlap_costs(case):
        return []
    both = case.is_set_to(_GRADIENTS, False) and sharded and case.is_set_to(_WEIGHTS, False)
    if case.is_set_to(_GRADIENTS, False):
        why = "reduces each gradient bucket during the backward pass"
        together = (_WEIGHTS,) if both else ()
        alone = not both and case.gathers_weights and not case.is_set_to(_WEIGHTS, True)
        only = at_most(gain, "predicted with the weights all-gather overlapped too") if alone else gain
        found.append(advise(knob=_GRADIENTS, to=True, why=why, gain=only, together=together))
    if sharded and case.is_set_to(_WEIGHTS, False):
        why = "gathers the next layers' weights during the forward pass"
        if not both:
            gain = at_most(gain, "predicted with gradient reduction overlapped too, which it may be already")
        together = (_GRADIENTS,) if both else ()
        found.append(advise(knob=_WEIGHTS, to=True, why=why, gain=gain, together=together))
    return found


def _unadvised(case: Case, *, ddp: bool) -> str:
    if seldom := seldom_summed(case):
        return seldom
    if ddp:
        return f"{settings_of_ddp(case, _better_buckets(case))} {_OTHERWISE}"
    if shards := less_of_shards(case):
        return f"{shards} {_OTHERWISE}"
    return _UNADVISED if all(case.setting(k)[0] for k in _RELEVANT) else _unknown(case)


def _hides_alone(case: Case, advice: Sequence[Advice]) -> bool:
    """Whether what is told hides communication and sends no less of it: compute bounds what that saves."""
    if advice:
        return {piece.knob for piece in advice} <= {QUEUES, _GRADIENTS, _WEIGHTS}
    if reduces_with_ddp(case):
        return not sends_fp32(case) and not summed_too_often(case)
    return not (seldom_summed(case) or less_of_shards(case)) and (
        case.framework != "megatron" or sums_in_16_bits(case) is True
    )


def _unknown(case: Case) -> str:
    """What else may help depends on settings that are not known."""
    unread = ("bucket_size",) if _piped(case) else ()
    names = ", ".join(k for k in _RELEVANT if not case.setting(k)[0] and k not in unread)
    how = "" if case.configuration.values else f" {_GIVE}."
    return f"Not known, and worth a look: {names}.{how} {_OTHERWISE}"


def _overlap_costs(case: Case) -> bool:
    gain = predicted(case, "overlapped_dp")
    return gain is not None and (gain.mid_ms or 0.0) < 0


def _piped(case: Case) -> bool:
    """By the settings, or where buckets are Megatron's by what the capture shows."""
    shown = case.job.stages if may_have_megatrons_buckets(case.framework) else None
    return (case.degree("pipeline_model_parallel_size") or shown or 1) > 1


def _buckets(case: Case) -> list[Advice]:
    """Another bucket size, if the lower end of its predicted gain is positive; megatron-core's default for a
    smaller size whose middle is positive.

    Not while the overlap is off: megatron-core then ignores the size and makes one bucket of all gradients,
    and the replayed buckets change once it is on.
    """
    size = bucket_elements(case)
    if size is None or _piped(case) or case.is_set_to(_GRADIENTS, False):
        return []
    if case.is_set_to("use_megatron_fsdp", True):
        if case.is_set_to("bucket_size", None):
            return []
        why = "Megatron FSDP then overlaps each layer's weights and gradients with that layer's compute"
        return [advise(knob="bucket_size", to=None, why=why)]
    if best := _best_buckets(case):
        words, factor, gain = best
        why = f"{words} messages; the size counts elements, not bytes"
        return [advise(knob="bucket_size", to=max(1, round(size * factor)), why=why, gain=gain)]
    larger, usual = case.prediction("buckets_x4"), usual_elements(case)
    unsure = larger is not None and (larger.mid_ns or 0) > 0
    if unsure and size < usual and may_have_megatrons_buckets(case.framework):
        why = f"megatron-core's default instead of {size:,} elements: fewer messages, less latency"
        return [advise(knob="bucket_size", to=usual, why=why)]
    return []


def _best_buckets(case: Case) -> tuple[str, float, Gain] | None:
    """(words, factor, gain) of the other buckets that surely gain most; None for none."""
    sure = [
        (words, factor, gain)
        for key, (words, factor) in OTHER_BUCKETS.items()
        if (gain := surely_saved(case, key))
    ]
    return max(sure, key=lambda way: way[2].mid_ms or 0.0, default=None)


def _better_buckets(case: Case) -> str:
    """Which other buckets surely gain, in words; empty for none."""
    best = None if _piped(case) else _best_buckets(case)
    return best[0] if best else ""


def _sums_in_fp32(case: Case) -> bool:
    return case.is_set_to("grad_reduce_in_fp32", True) and case.job.facts.dtype not in (None, "fp32")


def _many(case: Case) -> bool:
    """Whether there are so many ranks that a bf16 reduction loses precision, and nothing is known to keep
    it."""
    return (summing_ranks(case) or 0) >= MANY_RANKS and not keeps_precision(case)


def _narrower_sums(case: Case) -> list[Advice]:
    if not _sums_in_fp32(case) or (_many(case) and not can_accumulate_in_fp32(case)):
        return []
    gain = predicted(case, "dp_half_bytes")
    costs = "gradient reduction loses precision; compare the loss over some thousand steps"
    found = []
    if _many(case):
        why = "accumulates bf16 messages in fp32: the reduction over so many ranks keeps its precision"
        found.append(advise(knob="reduce_scatter_with_fp32_accumulation", to=True, why=why))
        costs = "replaces NCCL's reduce-scatter by an all-to-all and local sums; compare the loss"
        gain = at_most(gain, "predicted for a reduce-scatter of half the bytes, not for the all-to-all")
    why = "sends gradients in 2 bytes instead of 4"
    return [*found, advise(knob="grad_reduce_in_fp32", to=False, why=why, gain=gain, costs=costs)]


def _narrower_weights(case: Case) -> list[Advice]:
    """FP8 weights all-gather, if GEMMs run in FP8 with a recipe that can gather FP8 weights, and weights are
    known to be gathered wider."""
    known, fp8 = case.setting("fp8")
    needs = fp8_gather(case)
    if not known or fp8 is None or needs is None or not case.is_set_to("fp8_param_gather", False):
        return []
    costs = f"needs {needs}" if needs else ""
    found = []
    if case.is_set_to("fp8_recipe", "mxfp8") and not case.is_set_to("use_megatron_fsdp", True):
        why = "gathers MXFP8 weights into the gradient buffer"
        found.append(advise(knob="reuse_grad_buf_for_mxfp8_param_ag", to=True, why=why))
    why = "gathers weights in 1 byte instead of 2, the values that the GEMMs use anyway"
    return [advise(knob="fp8_param_gather", to=True, why=why, costs=costs), *found]


def _held_back(case: Case, *, ddp: bool) -> list[str]:
    """Why expected advice is missing."""
    found = []
    if case.is_set_to(_GRADIENTS, False) and _overlap_costs(case):
        found.append("Overlap is off and not advised: with these buckets the replay predicts a loss.")
    known, size = case.setting("bucket_size")
    if known and size is not None and _piped(case) and may_have_megatrons_buckets(case.framework):
        found.append(
            "bucket_size stays: with a pipeline only the first chunk of the first stage uses it; elsewhere "
            "each chunk of layers is one bucket."
        )
    if not known and not ddp and (way := _better_buckets(case)):
        fsdp = case.framework == "pytorch" and case.gathers_weights and "deepspeed" not in case.program.marks
        how = ", by the layers in a unit of fully_shard" if fsdp else "; bucket_size is not known"
        found.append(f"The replay predicts a gain of {way} messages{how}.")
    if _sums_in_fp32(case) and _many(case) and not can_accumulate_in_fp32(case):
        found.append(
            f"A bf16 reduction over {summing_ranks(case)} ranks is not advised: along a ring it loses "
            "precision, unless use_sharp or reduce_scatter_with_fp32_accumulation keeps it."
        )
    return found
