"""Limits of context parallelism, and whether ranks are better on it or on tensor parallelism."""

from collections.abc import Iterator, Sequence
from dataclasses import field

from perfdoc.records import dataclass
from perfdoc.rules.engine.advise import Advice, advise, all_or_none
from perfdoc.rules.engine.needs import GPUS, WINDOW, first_missing, given, known, several
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import (
    CP,
    TP,
    degrees_of,
    divisors,
    has_experts,
    heads_of,
    hidden_size_of,
    sequence_of,
    without_tensor_ranks,
)
from perfdoc.rules.facts.exposed import MIN_FRAC, time_ns, transfer_ns
from perfdoc.rules.facts.memory_need import too_large
from perfdoc.rules.facts.overlaps import tp_overlap_allowed
from perfdoc.rules.facts.smaller_mapping import splits_too_far

TIMES = 2.0
"""Factor by which the exposed share of one must exceed the other."""
NEEDS = (
    GPUS,
    known(
        "the degrees of tensor and context parallelism",
        lambda case: case.degree(TP),
        lambda case: case.degree(CP),
        reason="the degrees of tensor and context parallelism are not known",
    ),
    several(
        "context parallelism",
        lambda case: case.degree(CP),
        one="there is no context parallelism; for TP alone see PD314",
    ),
    WINDOW,
)


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Exposed TP and CP communication, and a split of the same ranks that may gain."""

    of_tp: float
    of_cp: float
    """Exposed transfer, of the window, mean over ranks."""
    advice: Sequence[Advice] = field(default_factory=tuple)
    """Empty if the current split is balanced."""
    why_not: str = ""
    """Why there is no advice although the two are unbalanced."""

    @property
    def to_context(self) -> bool:
        """Whether ranks would go from tensor to context parallelism."""
        return self.of_tp > self.of_cp


def balance(case: Case) -> Balance:
    """For a case that meets NEEDS."""
    tp, cp = given(case.degree(TP)), given(case.degree(CP))
    of_tp, of_cp = (given(case.share(transfer_ns(case, dimension))) for dimension in ("tp", "cp"))
    more, less = max(of_tp, of_cp), min(of_tp, of_cp)
    if more < MIN_FRAC or more < TIMES * less:
        return Balance(of_tp=of_tp, of_cp=of_cp)
    to_context = of_tp > of_cp
    if why_not := _something_first(case, to_context=to_context):
        return Balance(of_tp=of_tp, of_cp=of_cp, why_not=why_not)
    found = _to_context(case, tp, cp) if to_context else _to_tensor(case, tp, cp)
    advice = [] if _experts_follow(case) else all_or_none(case, list(found))
    why_not = "" if advice else "no other split of these ranks is known to fit"
    return Balance(of_tp=of_tp, of_cp=of_cp, advice=advice, why_not=why_not)


def out_of_balance(case: Case) -> bool:
    """Whether another split of the ranks is advised."""
    return first_missing(case, NEEDS) is None and bool(balance(case).advice)


def _something_first(case: Case, *, to_context: bool) -> str:
    """What to fix before ranks are moved; empty if nothing."""
    if to_context and tp_overlap_allowed(case):
        return "TP overlap is off, fix that first: see PD111"
    if to_context and splits_too_far(case):
        return "the model fits on fewer tensor ranks: see PD310"
    length, hidden = sequence_of(case), hidden_size_of(case)
    if not to_context and length is not None and hidden is not None and length < hidden:
        return "sequences are too short to split: see PD316"
    return ""


def _experts_follow(case: Case) -> bool:
    """Whether the experts' layout would change with TP, or may."""
    known, etp = case.setting("expert_tensor_parallel_size")
    return has_experts(case) is not False and not (known and etp is not None)


def _to_context(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of TP to CP, for sequences longer than the hidden size, if twice the weights fit."""
    length, hidden, now = sequence_of(case), hidden_size_of(case), degrees_of(case)
    if tp % 2 or length is None or hidden is None or length <= hidden or now is None:
        return
    then = now.with_model_parallel(tp=tp // 2, pp=now.pp, cp=2 * cp)
    if not sequence_allows(case, 2 * cp) or too_large(case, now, then):
        return
    yield advise(
        knob=TP,
        to=tp // 2,
        why=f"sequences ({length:,} tokens) are longer than the hidden size ({hidden:,}): CP over the same "
        "ranks communicates less",
        costs="twice the weights and gradients per GPU; optimizer states stay sharded over as many ranks",
    )
    yield advise(knob=CP, to=2 * cp, why="uses the ranks freed by TP")
    if tp == 2:
        yield from without_tensor_ranks(case)


def _to_tensor(case: Case, tp: int, cp: int) -> Iterator[Advice]:
    """Half of CP to TP, if the group stays inside an NVLink domain."""
    domain = None if case.gpu is None else case.gpu.nvlink_domain
    if cp % 2 or domain is None or 2 * tp > domain:
        return
    yield advise(
        knob=TP,
        to=2 * tp,
        why="attention is too short to hide the CP communication; GEMMs may hide more",
        costs="smaller GEMMs, and all-gathers and reduce-scatters in every layer",
    )
    yield advise(knob=CP, to=cp // 2, why="frees the ranks for TP")


def sequence_allows(case: Case, cp: int) -> bool:
    """Whether the sequence length is known to be a multiple of 2 x CP, as megatron-core requires."""
    length = sequence_of(case)
    return cp == 1 or (length is not None and length % (2 * cp) == 0)


def key_value_heads(case: Case) -> int | None:
    """Key and value heads; multi-latent attention has one shared latent."""
    model = case.job.facts.model
    if case.is_set_to("multi_latent_attention", True) or (model is not None and model.kv_lora_rank):
        return 1
    known, groups = case.setting("num_query_groups")
    if known and isinstance(groups, int) and not isinstance(groups, bool):
        return groups
    return heads_of(case) if known else None if model is None else model.query_groups


def transfer_over_attention(case: Case) -> float | None:
    """CP communication time over attention time, all ranks; None if attention is unknown."""
    attention = [rank.kernel_parts.attention_ns for rank in case.ranks]
    total = sum(ns or 0 for ns in attention)
    return None if None in attention or not total else time_ns(case, "cp") / total


def covered_cp(case: Case, cp: int, ratio: float) -> int | None:
    """The largest smaller degree at which attention hides the ring's transfer; None if by `ratio` it already
    does, or if the batch is not known to divide over the additional replicas.

    Each of `cp` ranks moves (cp - 1) / cp of the keys and values and computes 1 / cp of attention: transfer
    over attention grows with cp - 1. 1.5 at cp 8 is 1.5 x 3 / 7 = 0.64 at 4.
    """
    if ratio <= 1.0 or cp < 2 or case.dp is None:
        return None
    smaller = [c for c in divisors(cp) if c < cp and ratio * (c - 1) / (cp - 1) <= 1.0]
    fits = (c for c in smaller if case.micro_batches_over(case.dp * cp // c) is not None)
    return max(fits, default=None)


def two_levels(case: Case, cp: int) -> tuple[int, int] | None:
    """(ranks of the all-to-all, ranks of each ring): the first as large as fits one NVLink domain and divides
    the heads of a rank. None if one of these is unknown, or there is no such split."""
    gpu, tp = case.gpu, case.degree("tensor_model_parallel_size")
    query, shared = heads_of(case), key_value_heads(case)
    if gpu is None or gpu.nvlink_domain is None or not tp or query is None or shared is None:
        return None
    fits = [
        a
        for a in divisors(cp)
        if 1 < a < cp and a * tp <= gpu.nvlink_domain and query % (tp * a) == 0 and shared % (tp * a) == 0
    ]
    return (fits[-1], cp // fits[-1]) if fits else None
