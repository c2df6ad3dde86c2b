"""FP8 shortens GEMMs of linear layers only. Where the device waits for its host, or the GEMMs are a small
part, it costs accuracy and casts for nothing."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice
from perfdoc.rules.engine.needs import GPUS, given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.bubble import larger
from perfdoc.rules.facts.capture import STEADY, kernel_medians
from perfdoc.rules.facts.graphs import graph_advice, launching_ns
from perfdoc.rules.facts.precision import FP8, LINEAR_SHARE, PEAK_RATIO, linear_share

META = Meta(
    title="FP8 that can gain little",
    action="Go back from FP8 to 16 bits",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide"),
    topic="low_precision",
    needs=(GPUS, FP8, STEADY, LINEAR_SHARE),
    advice=("host_symptom_fp8", "lp_low_gain_host_bound", "lp_low_gain_share"),
)

MIN_SPEED_UP_RATIO = 1.2
"""What the guides expect of FP8 at least."""
MIN_HOST_FRAC = 0.05
"""Of the window, idle, launch-bound."""


def evaluate(case: Case) -> Verdict:
    """Fires where the job multiplies in FP8 and either the host keeps the device waiting or the GEMMs
    cannot have made the step `MIN_SPEED_UP_RATIO` as fast."""
    host, share = given(case.share(launching_ns)), given(linear_share(case))
    # In 16 bits the same GEMMs would have taken PEAK_RATIO times as long, at most.
    most = 1 + share * (PEAK_RATIO - 1)
    evidence = [
        ("GEMMs of linear layers, of the window", per_cent(share)),
        ("FP8 made the step faster by a factor of", f"{most:.2f} at most"),
        ("idle, launch-bound", per_cent(host)),
    ]
    waits, small = host >= MIN_HOST_FRAC, most < MIN_SPEED_UP_RATIO
    if not waits and not small:
        return passes(evidence)
    advice: list[Advice] = []
    if waits:
        evidence += kernel_medians(case)
        advice = [*graph_advice(case, None, None), *larger(case, "longer kernels, which show what FP8 gains")]
        reason = "the step is launch-bound: faster GEMMs do not show"
        remedy = "Fix the host first (PD201): a larger micro-batch, CUDA graphs; then measure FP8 again."
    else:
        reason = "linear layers are a small part of the step"
        remedy = (
            "Look at what fills the step instead: attention, element-wise kernels, communication. Linear "
            "work grows with the square of the hidden size, so that FP8 pays with larger models. Where casts "
            "cost more than the GEMMs save, train in BF16."
        )
    return informs(
        reason=reason,
        evidence=evidence,
        advice=advice,
        remedy=remedy,
        verify="Measure the same step in BF16: that is the only figure for what FP8 gains.",
        false_alarm="FP8 that was chosen for memory rather than for speed.",
    )
