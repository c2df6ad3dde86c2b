"""PD384: ranks on tensor parallelism that context parallelism would use better, or the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.checks.pd111_exposed_tp import overlap_allowed
from perfdoc.rules.checks.pd310_more_splitting_than_needed import splits_too_far
from perfdoc.rules.engine.advise import advise, all_or_none
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.context_parallel import sequence_allows
from perfdoc.rules.facts.degrees import (
    CP,
    TP,
    degrees_of,
    has_experts,
    hidden_size_of,
    sequence_of,
    without_tensor_ranks,
)
from perfdoc.rules.facts.exposed import MIN_FRAC, ceiling_of_transfer, transfer_ns
from perfdoc.rules.facts.hidden import only_for_gpus
from perfdoc.rules.facts.memory_need import too_large

META = Meta(
    code="PD384",
    title="Tensor and context parallelism out of balance",
    why="Both divide the same tensors: tensor parallelism overlaps with products and moves every activation, "
    "context parallelism overlaps with attention and moves keys and values. Where one is exposed and the "
    "other hidden, ranks are on the wrong side.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="long_sequence",
    time=("exposed_comm.tp",),
    needs=("trace", "settings"),
    advice=("ls_tp_cp_sweep",),
)

TIMES = 2.0
"""By how much the exposed share of one must exceed that of the other."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the exposed transfer of one takes 5 % of the window and `TIMES` that of
    the other, and half of its degree fits on the other side. What the other mapping takes has to be
    measured."""
    on_cpu = only_for_gpus(case)
    if on_cpu is not None:
        return on_cpu
    tp, cp = case.degree(TP), case.degree(CP)
    if tp is None or cp is None:
        return Verdict(state="skipped", reason="the degrees of tensor and context parallelism are not known")
    if cp == 1:
        return Verdict(
            state="not_applicable", reason="there is no context parallelism; of TP alone see PD314"
        )
    of_tp, of_cp = case.share(transfer_ns(case, "tp")), case.share(transfer_ns(case, "cp"))
    if of_tp is None or of_cp is None:
        return Verdict(state="skipped", reason="every window is empty")
    evidence = [
        Evidence(label=f"exposed transfer of TP {tp}, mean over ranks", value=per_cent(of_tp)),
        Evidence(label=f"exposed transfer of CP {cp}, mean over ranks", value=per_cent(of_cp)),
    ]
    more, less = max(of_tp, of_cp), min(of_tp, of_cp)
    if more < MIN_FRAC or more < TIMES * less:
        return Verdict(state="passes", evidence=evidence)
    to_cp = of_tp > of_cp
    if to_cp and overlap_allowed(case):
        reason = "the overlap of TP is off, which comes first: see PD111"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if to_cp and splits_too_far(case):
        reason = "the model fits on fewer tensor ranks: see PD310"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    length, hidden = sequence_of(case), hidden_size_of(case)
    if not to_cp and length is not None and hidden is not None and length < hidden:
        reason = "sequences are too short to be divided: see PD316"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    found = _to_context(case, tp, cp) if to_cp else _to_tensor(case, tp, cp)
    advice = [] if _experts_follow(case) else all_or_none(case, list(found))
    if not advice:
        reason = "no other split of these ranks is known to fit"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        level="information",
        reason=f"{'TP' if to_cp else 'CP'} is exposed, {'CP' if to_cp else 'TP'} is not",
        evidence=evidence,
        advice=advice,
        remedy="Measure both mappings, and those around them: no trace of one shows how the other runs.",
        gain=ceiling_of_transfer(case, "tp" if to_cp else "cp"),
        time=("exposed_comm.tp" if to_cp else "exposed_comm.cp",),
        verify="Run both for some steps and compare the step times: perfdoc diff BEFORE AFTER.",
        false_alarm="An overlap that is only switched off (PD111, PD120): switch it on first.",
    )


def _experts_follow(case: Case) -> bool:
    """Whether experts would change their layout with TP, or may."""
    known, etp = case.setting("expert_tensor_parallel_size")
    return has_experts(case) is not False and not (known and etp is not None)


def _to_context(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of TP to CP, for sequences longer than the model is wide, where weights of twice the size fit."""
    length, hidden, now = sequence_of(case), hidden_size_of(case), degrees_of(case)
    if tp % 2 or length is None or hidden is None or length <= hidden or now is None:
        return
    then = now.with_model_parallel(tp=tp // 2, pp=now.pp, cp=2 * cp)
    if not sequence_allows(case, 2 * cp) or too_large(case, now, then):
        return
    yield advise(
        knob=TP,
        to=tp // 2,
        why=f"sequences of {length:,} tokens are longer than the model is wide ({hidden:,}): the same number "
        "of ranks exchanges less as context parallelism",
        costs="each GPU holds twice the weights and gradients; optimizer states stay divided over as many "
        "ranks",
    )
    yield advise(knob=CP, to=2 * cp, why="takes the ranks that TP gives back")
    if tp == 2:
        yield from without_tensor_ranks(case)


def _to_tensor(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of CP to TP, as long as the group stays inside an NVLink domain."""
    domain = None if case.gpu is None else case.gpu.nvlink_domain
    if cp % 2 or domain is None or 2 * tp > domain:
        return
    yield advise(
        knob=TP,
        to=2 * tp,
        why="pieces of attention are too short to hide the exchange of keys and values; products may hide "
        "more",
        costs="thinner products, and gathers and scatters in every layer",
    )
    yield advise(knob=CP, to=cp // 2, why="gives the ranks that TP takes")
