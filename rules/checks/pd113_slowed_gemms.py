"""Communication kernels take SMs from the GEMM that hides them: beyond some number the GEMM loses more than
the transfer gains."""

from collections.abc import Iterator

from perfdoc.results.figures import brief, per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.gain import RankMeasurement, ceiling
from perfdoc.rules.engine.needs import GPUS, Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.exposed import seen


def _lost_frac(case: Case) -> float | None:
    """GEMM time lost to concurrent communication, of the windows of all ranks; None if not measured."""
    cost, windows = case.job.contention.other_cost, sum(r.ledger.total for r in case.ranks)
    measured = case.job.contention.state == "measured" and cost is not None and windows
    return cost.low_ns / windows if measured and cost is not None else None


def _not_compared(case: Case) -> Missing | None:
    """Clusters and pieces are judged without the measurement too."""
    if _lost_frac(case) is not None or any(a.knob in _BY_SETTING for a in _usual(case)):
        return None
    if not any(r.communication for r in case.ranks):
        return not_applicable("no communication was seen")
    found = case.job.contention
    few = "too few GEMMs ran with and without concurrent communication"
    return skipped(found.reason if found.state != "measured" and found.reason else few)


META = Meta(
    title="GEMMs slowed by concurrent communication",
    action="Give communication fewer SMs beside GEMMs",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="comm_overlap",
    needs=(GPUS, Need(words="GEMMs with and without concurrent communication", missing=_not_compared)),
    advice=("tp_overlap_sms", "tp_overlap_cga", "tp_overlap_splits", "mlm_02"),
)

MIN_FRAC = 0.01
"""Of the windows of all ranks: lower end of the estimated GEMM time lost."""
USUAL_SM = 16
"""SMs that guides give a bulk or pipelined overlap, a start for tuning."""
MAX_CGA = 2
"""Larger thread-block clusters leave gaps between the GEMM's SMs."""
MAX_SPLITS = 4
"""Pieces of a GEMM that feeds a reduce-scatter; more leave the last wave of each piece partly empty."""
_SM, _CGA, _SPLITS = "tp_overlap_num_sm", "tp_overlap_cga_size", "tp_overlap_num_splits"
_BY_SETTING = (_CGA, _SPLITS)
"""What the guides judge by the setting alone."""
_REMEDY = (
    "Fewer channels leave GEMMs more SMs: max_ctas of the group in NCCL's communicator configuration "
    "(nccl_communicator_config_path), or registered buffers (nccl_ub). Lower it stepwise while the "
    "communication stays hidden."
)


def evaluate(case: Case) -> Verdict:
    """Fires if GEMMs are provably slower during communication, at a cost of `MIN_FRAC` of the windows; as a
    problem if TP overlap uses more than the usual SMs, clusters or pieces, else as information, since every
    overlap has a cost. Without the measurement a cluster above `MAX_CGA` or above its SMs, and more than
    `MAX_SPLITS` pieces, are information."""
    odd = list(_usual(case))
    found, share = case.job.contention, _lost_frac(case)
    if share is None:
        return _fires(case, [], [a for a in odd if a.knob in _BY_SETTING], measured=False)
    evidence = [("GEMM time lost to concurrent communication", f"{per_cent(share, 2)} or more")]
    worst = next((k for k in found.other_signatures if k.slower_devices), None)
    if worst is not None and worst.alone_ns and worst.contended_ns:
        label = (
            f"{worst.kernel_class}, {worst.samples_alone} runs alone, {worst.samples_contended} overlapping"
        )
        value = f"{brief(worst.alone_ns)}, {brief(worst.contended_ns)}"
        evidence.append((label, value))
    if found.occupied_blocks is not None:
        label = "most thread blocks of communication"
        evidence.append((label, str(found.occupied_blocks)))
    if share < MIN_FRAC:
        return passes(evidence)
    return _fires(case, evidence, odd, measured=True)


def _registered(case: Case) -> list[Advice]:
    """Registered buffers, with which NCCL needs fewer SMs to reduce gradients."""
    if case.gpu is None or not case.gpu.nvls or not seen(case, "dp") or not case.is_set_to("nccl_ub", False):
        return []
    why = "registered buffers: NCCL reduces gradients with few SMs, which leaves GEMMs the others"
    costs = "buffers outside PyTorch's allocator, not with expandable_segments; sets NCCL_NVLS_ENABLE=1"
    return [advise(knob="nccl_ub", to=True, why=why, costs=costs)]


def _fires(case: Case, evidence: list[Evidence], advice: list[Advice], *, measured: bool) -> Verdict:
    return fires(
        worst=worst_instance(case, "contention.other"),
        level="problem" if measured and advice else "information",
        reason="the same GEMMs take longer during communication"
        if measured
        else "TP overlap is set to larger clusters or smaller pieces than GEMMs want",
        evidence=evidence,
        advice=[*advice, *(_registered(case) if measured else ())],
        otherwise=_REMEDY,
        gain=ceiling(case, _lost_ns, "all GEMM time lost to concurrent communication") if measured else None,
        verify="Run again: in the contention table GEMMs with and without communication come closer, and "
        "exposed communication grows by less.",
        false_alarm="GEMMs of several sizes with one kernel and grid; or a transfer that fewer SMs would "
        "expose.",
    )


def _lost_ns(rank: RankMeasurement) -> int:
    """Against the shortest tenth of the runs alone: what this costs at most."""
    cost = rank.contention.other_cost
    return cost.high_ns if cost is not None else 0


def _usual(case: Case) -> Iterator[Advice]:
    if not case.is_set_to("tp_comm_overlap", True):
        return
    sms, cga = case.number(_SM), case.number(_CGA)
    if sms is not None and sms > USUAL_SM:
        why = f"returns {sms - USUAL_SM} SMs to GEMMs; tune from there by the profile"
        yield advise(
            knob=_SM, to=USUAL_SM, why=why, costs="the transfer takes longer, and its end may be exposed"
        )
    to = MAX_CGA if sms is None else max(1, min(MAX_CGA, sms))
    if cga is not None and cga > to:
        yield advise(knob=_CGA, to=to, why="leaves GEMMs contiguous SMs, and fits the overlap's own")
    splits = case.number(_SPLITS)
    if splits is not None and splits > MAX_SPLITS:
        why = f"{MAX_SPLITS} pieces instead of {splits}: larger GEMMs, fewer partly empty waves"
        costs = f"the last piece, which stays exposed, is 1/{MAX_SPLITS} of the output"
        yield advise(knob=_SPLITS, to=MAX_SPLITS, why=why, costs=costs)
