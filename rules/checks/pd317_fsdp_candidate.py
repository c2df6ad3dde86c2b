"""FSDP gathers a layer's weights while the previous layer computes. Its bytes depend on the weights, not on
the tokens: with long sequences and few weights compute hides it, and no layer waits for activations."""

from perfdoc.results.figures import gib, per_cent, significant
from perfdoc.rules.engine.gain import RankMeasurement, ceiling
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, given, known, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.degrees import DEGREES, degrees_of, hidden_size_of, sequence_of, uses_fsdp
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns
from perfdoc.rules.facts.memory_need import FIT_FRAC, device_bytes
from perfdoc.rules.facts.smaller_mapping import (
    need_bytes,
    parameters_in,
    splits_too_far,
    traffic_of,
    whole_layers,
)


def _nothing_split(case: Case) -> Missing | None:
    if uses_fsdp(case):
        return not_applicable("FSDP is used already")
    now = degrees_of(case)
    split = now is not None and now.tp * now.pp > 1 and now.world > 1
    return None if split else not_applicable("neither TP nor PP is used")


META = Meta(
    title="TP or PP where FSDP communication would be hidden",
    action="Try FSDP instead of TP or PP",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide"),
    topic="parallel_mapping",
    time=("exposed_comm.tp", "pipeline.bubble", "pipeline.transfer"),
    needs=(
        GPUS,
        DEGREES,
        Need(words="TP or PP above 1, not FSDP", missing=_nothing_split),
        known(
            "the model's shape, the sequence length and the micro-batch",
            lambda case: case.job.facts.model,
            sequence_of,
            hidden_size_of,
            lambda case: case.number("micro_batch_size"),
            reason="the model, the sequence length or the micro-batch is not known",
        ),
        WINDOW,
    ),
    advice=("fsdp_small_long", "pm_table_fsdp", "fsdp_megatron_better"),
)

MIN_TOKENS = 8192
"""Of a micro-batch per GPU: 2 FLOPs per parameter and token at some 400 TFLOP/s take as long as 2 bytes per
parameter at 50 GB/s of network at 8,000 tokens."""
MAX_PARAMETERS = 20_000_000_000
"""Above this, unsharded layers and their all-gathers are no longer small against activations."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if exposed TP and PP communication takes `exposed.MIN_FRAC` of the time in a
    model of at most `MAX_PARAMETERS`, with `MIN_TOKENS` of a micro-batch per GPU and sequences longer
    than the hidden size, whose traffic the measured compute can hide, and that is not estimated to exceed
    `memory_need.FIT_FRAC` of the device."""
    now, share = given(degrees_of(case)), given(case.share(_cost_ns))
    sequence, hidden = given(sequence_of(case)), given(hidden_size_of(case))
    size = given(case.number("micro_batch_size"))
    parameters = given(parameters_in(case))
    tokens = sequence * size // now.cp
    evidence = [
        ("exposed TP and PP communication, mean over ranks", per_cent(share)),
        ("parameters", f"{significant(parameters / 1e9)} billion"),
        ("tokens of a micro-batch per GPU", f"{tokens:,}"),
    ]
    need = need_bytes(case, now)
    if need is not None:
        evidence.append(("estimated memory per GPU with FSDP", gib(need, 3)))
        memory = device_bytes(case)
        if memory is not None and need > FIT_FRAC * memory:
            return passes(evidence, "the activations of a whole micro-batch may not fit")
    fitting = parameters <= MAX_PARAMETERS and tokens >= MIN_TOKENS and sequence > hidden
    traffic = traffic_of(case, now, parameters)
    if traffic is not None:
        evidence += traffic.evidence
    if share < MIN_FRAC or not fitting:
        return passes(evidence, "" if fitting else "the model is not small, or its sequences are not long")
    if traffic is not None and not traffic.is_hidden:
        return passes(evidence, "FSDP's own traffic takes longer than the compute that would have to hide it")
    if splits_too_far(case):
        return passes(evidence, "the model fits on fewer ranks: see PD310")
    advice = [] if need is None else whole_layers(case, now)
    return informs(
        reason="a small model with long sequences has exposed TP or PP communication",
        evidence=evidence,
        advice=advice,
        otherwise=_OTHERWISE,
        gain=ceiling(case, _cost_ns, "all exposed TP and PP communication; FSDP's own is not included"),
        verify="Run both for some twenty steps and compare tokens per second; exposed DP communication must "
        "stay below the currently exposed TP and PP communication.",
        false_alarm="Activations above the estimate: then use context parallelism with FSDP, or no FSDP.",
    )


_OTHERWISE = (
    "Try FSDP instead of tensor and pipeline parallelism, with a global batch that divides over all ranks; a "
    "guide finds megatron-core's faster than PyTorch's."
)


def _cost_ns(rank: RankMeasurement) -> int:
    return exposed_ns("tp")(rank) + exposed_ns("pp")(rank)
