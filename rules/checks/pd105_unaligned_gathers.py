"""A weights all-gather slows the compute that it overlaps with. If each stage gathers at a different time,
each slows the pipeline in turn; if all do so at once, the pipeline slows once."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import Missing, Need, applies, not_applicable, setting, several, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.degrees import PP, VPP
from perfdoc.rules.facts.exposed import MIN_FRAC, exposed_ns
from perfdoc.rules.facts.gradient_sums import summing_ranks

_GATHER, _ALIGN = "overlap_param_gather", "align_param_gather"
_WITH_STEP = "overlap_param_gather_with_optimizer_step"


def _not_interleaved(case: Case) -> Missing | None:
    pp, vpp = case.degree(PP), case.degree(VPP)
    if pp is None or (pp > 1 and vpp is None):
        return skipped("the pipeline degrees are not known")
    return not_applicable("there are no interleaved pipeline stages") if pp == 1 or vpp == 1 else None


META = Meta(
    title="Weights all-gather not aligned across pipeline stages",
    action="Align the weights all-gather across pipeline stages",
    sources=("Megatron-Bridge guide", "NeMo guide", "megatron-core notes"),
    topic="comm_overlap",
    needs=(
        Need(words="interleaved pipeline stages", missing=_not_interleaved),
        several(
            "more than one replica, or an unknown number",
            summing_ranks,
            one="there is one replica, so no weights all-gather",
        ),
        setting(_GATHER),
        applies(
            "an overlapped weights all-gather",
            lambda case: case.is_set_to(_GATHER, True),
            "the weights all-gather is not overlapped, see PD101",
        ),
    ),
    advice=("dp_overlap_pp_vpp", "dp_overlap_opt_step"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if the weights all-gather is overlapped in an interleaved pipeline and known
    not to be aligned; or does not start in the optimizer step, if exposed DP communication takes 5 % of the
    window."""
    evidence = [("stages x chunks", f"{case.degree(PP)} x {case.degree(VPP)}")]
    share = case.share(exposed_ns("dp"))
    if share is not None:
        evidence.append(("exposed DP communication, mean over ranks", per_cent(share)))
    aligned = case.setting(_ALIGN)
    advice = []
    if aligned == (True, False):
        advice.append(advise(knob=_ALIGN, to=True, why="all stages gather at the same time"))
    works = case.configuration.dialect != "megatron_bridge"  # it is off there: an open bug with checkpoints
    if (share or 0.0) >= MIN_FRAC and case.is_set_to(_WITH_STEP, False) and works:
        why = "gathers the first bucket while the optimizer still updates the others"
        costs = "Megatron-LM refuses it with distributed checkpoints"
        advice.append(advise(knob=_WITH_STEP, to=True, why=why, costs=costs))
    if not advice:
        if not aligned[0]:
            return skips(f"{_ALIGN} is not known", evidence)
        return passes(evidence)
    return informs(
        worst=worst_exposed(case, "dp"),
        reason="stages gather weights at different times"
        if aligned == (True, False)
        else "the first weights are gathered only after the optimizer step",
        evidence=evidence,
        advice=advice,
        verify="Run again and capture all stages: late_peer in the pipeline section falls.",
        false_alarm="All-gathers that fit into the bubble already: compare all stages on one clock.",
    )
