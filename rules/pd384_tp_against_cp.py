"""PD384: ranks on tensor parallelism that context parallelism would use better, or the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.rules.case import Case
from perfdoc.rules.exposed import MIN_FRAC, ceiling_of_transfer, transfer_ns
from perfdoc.rules.hidden import only_for_gpus
from perfdoc.rules.model_states import gib, headroom_bytes, state_bytes
from perfdoc.rules.relayout import hidden_size, sequence_allows, sequence_length
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD384",
    title="Tensor and context parallelism out of balance",
    why="Both divide the same tensors: tensor parallelism overlaps with products and moves every activation, "
    "context parallelism overlaps with attention and moves keys and values. Where one is exposed and the "
    "other hidden, ranks are on the wrong side.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="long_sequence",
    needs=("trace", "settings"),
    advice=("ls_tp_cp_sweep", "cp_compute_comm_scaling"),
)

TIMES = 2.0
"""By how much the exposed share of one must exceed that of the other."""
STATES_FRAC = 0.6
"""Of a GPU's memory: weights, gradients and optimizer states that take more leave too little for
activations."""
_TP, _CP = "tensor_model_parallel_size", "context_parallel_size"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the exposed transfer of one takes 5 % of the window and `TIMES` that of
    the other, and half of its degree fits on the other side. What the other mapping takes has to be
    measured."""
    on_cpu = only_for_gpus(case)
    if on_cpu is not None:
        return on_cpu
    tp, cp = case.degree(_TP), case.degree(_CP)
    if tp is None or cp is None:
        return Verdict(state="skipped", reason="the degrees of tensor and context parallelism are not known")
    if tp * cp == 1:
        return Verdict(state="not_applicable", reason="neither tensor nor context parallelism")
    of_tp, of_cp = case.share(transfer_ns(case, "tp")), case.share(transfer_ns(case, "cp"))
    if of_tp is None or of_cp is None:
        return Verdict(state="skipped", reason="every window is empty")
    evidence = [
        Evidence(label=f"exposed transfer of TP {tp}, mean over ranks", value=f"{of_tp:.1%}"),
        Evidence(label=f"exposed transfer of CP {cp}, mean over ranks", value=f"{of_cp:.1%}"),
    ]
    more, less = max(of_tp, of_cp), min(of_tp, of_cp)
    if more < MIN_FRAC or more < TIMES * less:
        return Verdict(state="passes", evidence=evidence)
    to_cp = of_tp > of_cp
    follows = case.degree("expert_model_parallel_size") != 1 and not _experts_apart(case)
    found = () if follows else _to_context(case, tp, cp) if to_cp else _to_tensor(case, tp, cp)
    advice = list(found)
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
        verify="Run both for some steps and compare the step times: perfdoc diff BEFORE AFTER.",
        false_alarm="An overlap that is only switched off (PD111, PD120): switch it on first.",
    )


def _experts_apart(case: Case) -> bool:
    """Whether experts are known to keep their layout where TP changes."""
    known, etp = case.setting("expert_tensor_parallel_size")
    return (known and etp is not None) or case.is_set_to("num_moe_experts", None)


def _to_context(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of TP to CP, for sequences longer than the model is wide, where weights of twice the size fit."""
    length, hidden = sequence_length(case), hidden_size(case)
    if tp % 2 or length is None or hidden is None or length <= hidden:
        return
    if not sequence_allows(case, 2 * cp):
        return
    now, then = _states(case, tp, cp), _states(case, tp // 2, 2 * cp)
    more = None if now is None or then is None else then - now
    if not _fits(case, then, more):
        return
    memory = "" if more is None else f": {gib(more)} more on each GPU"
    yield Advice(
        knob=_TP,
        to=tp // 2,
        why=f"sequences of {length:,} tokens are longer than the model is wide ({hidden:,}): the same number "
        "of ranks exchanges less as context parallelism",
        costs=f"weights and gradients of twice the size{memory}",
    )
    yield Advice(knob=_CP, to=2 * cp, why="takes the ranks that TP gives back")
    if tp == 2:
        for knob in ("sequence_parallel", "tp_comm_overlap"):
            if case.is_set_to(knob, True):
                yield Advice(knob=knob, to=False, why="without tensor parallelism there is nothing to divide")


def _states(case: Case, tp: int, cp: int) -> float | None:
    """Bytes of model states on a GPU of such a layout."""
    (known, sharded), dp = case.setting("use_distributed_optimizer"), case.dp
    if not known or dp is None:
        return None
    return state_bytes(case, tp, dp * cp if sharded else 1)


def _fits(case: Case, states: float | None, more: float | None) -> bool:
    """Whether nothing that is known speaks against it: a snapshot's headroom, else the size of the memory."""
    free = headroom_bytes(case)
    if free is not None and more is not None:
        return more <= free
    memory = [r.device.memory_bytes for r in case.ranks if r.device.memory_bytes]
    return states is None or not memory or states <= STATES_FRAC * min(memory)


def _to_tensor(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of CP to TP, as long as the group stays inside an NVLink domain."""
    domain = None if case.gpu is None else case.gpu.nvlink_domain
    if cp % 2 or domain is None or 2 * tp > domain:
        return
    yield Advice(
        knob=_TP,
        to=2 * tp,
        why="pieces of attention are too short to hide the exchange of keys and values; products may hide "
        "more",
        costs="thinner products, and gathers and scatters in every layer",
    )
    yield Advice(knob=_CP, to=cp // 2, why="gives the ranks that TP takes")
