"""Every layer all-gathers and reduce-scatters activations between its GEMMs. What does not overlap with a
GEMM is exposed in each layer, forward and backward."""

from collections.abc import Iterator

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.degrees import shapes_change
from perfdoc.rules.facts.exposed import (
    WITH_WAITS,
    ceiling_of_transfer,
    exposed_evidence,
    exposed_ns,
    hidden_frac,
    judged,
    level_of,
    queues,
    surely_saved,
    time_ns,
)
from perfdoc.rules.facts.overlaps import TP_NEEDS, TP_OVERLAP, tp_overlap

META = Meta(
    title="Exposed tensor-parallel communication",
    action="Overlap tensor-parallel communication with GEMMs",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="comm_overlap",
    time=("exposed_comm.tp",),
    with_it=WITH_WAITS,
    needs=TP_NEEDS,
    advice=(
        "tp_overlap_enable",
        "tp_overlap_cfg",
        "tp_overlap_sms",
        "tp_overlap_splits",
        "tp_overlap_tail_exposed",
        "tp_overlap_static",
        "tp_fp8_buf",
    ),
)

USUAL_SPLITS = 4
"""Of a GEMM that feeds a reduce-scatter: fewer leave a larger last piece exposed, more make GEMMs too small
for the GPU."""
USUAL_SM = 16
"""For the communication kernel of a bulk or pipelined overlap."""
_SPLITS = "tp_overlap_num_splits"
_MOVING = (
    "tp_comm_overlap is not advised: user buffers need static shapes, and here they change from step to step "
    "(batches packed anew, or samples that are not packed)."
)
_FIXED_SHAPES = "Packs of one fixed length (sequence_packing_size) would allow it."
_LOCAL = (
    "megatron-core's local layers (transformer_impl local) have no user buffers; Transformer Engine's do. "
    "Less tensor parallelism moves fewer bytes with either."
)
_FIXED = (
    "tp_comm_overlap is on. Find the exposed all-gathers and reduce-scatters in the communication table, and "
    "tune their method, SMs and splits one GEMM at a time (tp_comm_overlap_cfg), starting from the recipes'."
)
_QUEUED = "Its collectives are queued behind later kernels: see PD112 first."
_BACKWARD = (
    "In the backward pass, GEMMs that do not depend on the communication run after it: megatron-core "
    "overlaps them by default, with CUDA_DEVICE_MAX_CONNECTIONS=1 up to Hopper (PD112). The gain is that of "
    "this alone."
)
_UNKNOWN = "Whether tp_comm_overlap is on is not known: give the job's configuration (--config FILE)."
_NOTHING = "Less tensor parallelism, or context parallelism for part of it, moves fewer bytes: see PD384."


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks: as a problem if the overlap is known to be
    off or next to nothing is hidden, unless the replay finds collectives queued behind kernels (PD112). With
    the overlap on, one of `USUAL_SPLITS` pieces (or of more, if set) stays exposed by design; up to that it
    passes. As information, whatever is exposed, if the overlap is on and shapes are known to change."""
    if case.is_set_to(TP_OVERLAP, True) and shapes_change(case):
        return _too_static(case)
    nothing, evidence = judged(case, "tp")
    if nothing is not None:
        return nothing
    on, off = case.is_set_to(TP_OVERLAP, True), case.is_set_to(TP_OVERLAP, False)
    splits = max(case.number(_SPLITS) or 0, USUAL_SPLITS)
    hidden = hidden_frac(case, "tp") or 0.0
    if on and 1 - hidden <= 1 / splits:
        return passes(evidence, f"only the last of {splits} pieces of each output is exposed, by design")
    advice = [*tp_overlap(case), *(_tuned(case) if on else ())]
    evidence += _over_gemms(case)
    queued = queues(case)
    remedy = _FIXED if on else "" if advice else _why_not(case)
    level = level_of(case, "tp", switched_off=off and bool(advice))
    sure = advice and TP_OVERLAP not in case.assumed
    unordered = None if sure or queued else surely_saved(case, "overlapped_tp")
    return fires(
        level="information" if queued and not off else level,
        reason="not hidden by the GEMMs around it",
        evidence=evidence,
        advice=advice,
        remedy=" ".join(w for w in (_QUEUED if queued else _BACKWARD if unordered else "", remedy) if w),
        otherwise=_NOTHING,
        gain=unordered or ceiling_of_transfer(case, "tp", by_overlap=True),
        verify="Run again: exposed TP communication in the ledger falls; all-gathers and reduce-scatters "
        "become copies or user-buffer kernels during GEMMs.",
        false_alarm="Waiting for a late rank, if ranks were not compared; or embedding and loss, which share "
        "the group and have no GEMM to hide it.",
    )


def _too_static(case: Case) -> Verdict:
    """The overlap is on, and its buffers have one size."""
    share = case.share(exposed_ns("tp")) or 0.0
    why = "user buffers are registered once, for shapes that change neither by step nor by layer"
    return informs(
        reason="tp_comm_overlap is on, and shapes change from step to step",
        evidence=[exposed_evidence(case, "tp", share)],
        advice=[advise(knob=TP_OVERLAP, to=False, why=why, costs="its communication is exposed")],
        remedy=_FIXED_SHAPES,
        otherwise=_FIXED_SHAPES,
        verify="Run again: no error of user buffers, and losses are those of a run without the overlap.",
        false_alarm="A job that pads every batch to one shape.",
    )


def _why_not(case: Case) -> str:
    """Why the overlap is not advised."""
    if shapes_change(case):
        return _MOVING
    if case.is_set_to("transformer_impl", "local"):
        return _LOCAL
    return _NOTHING if case.setting(TP_OVERLAP)[0] else _UNKNOWN


def _tuned(case: Case) -> Iterator[Advice]:
    splits, sms = case.number(_SPLITS), case.number("tp_overlap_num_sm")
    if splits is not None and splits < USUAL_SPLITS:
        why = f"leaves 1/{USUAL_SPLITS} of each reduce-scatter exposed instead of 1/{splits}"
        yield advise(knob=_SPLITS, to=USUAL_SPLITS, why=why, costs="smaller GEMMs, one per piece")
    if sms is not None and sms < USUAL_SM:
        why = f"{sms} SMs communicate too slowly during a GEMM"
        costs = "GEMMs have as many SMs less"
        yield advise(knob="tp_overlap_num_sm", to=USUAL_SM, why=why, costs=costs)
    known, fp8 = case.setting("fp8")
    longer = _communication_over_gemms(case)
    if known and fp8 is not None and case.is_set_to("tp_overlap_fp8_buf", False) and (longer or 0.0) > 1.0:
        yield advise(
            knob="tp_overlap_fp8_buf",
            to=True,
            why="reduce-scatters in 1 byte: communication takes longer than the GEMMs that could hide it",
            costs="outputs are rounded to FP8 before the reduction; compare the loss",
        )


def _communication_over_gemms(case: Case) -> float | None:
    """TP communication time over the linear layers' GEMM time, all ranks; None without the latter."""
    gemms = [r.kernel_parts.linear_ns for r in case.ranks]
    total = sum(ns or 0 for ns in gemms)
    return None if None in gemms or not total else time_ns(case, "tp") / total


def _over_gemms(case: Case) -> list[Evidence]:
    ratio = _communication_over_gemms(case)
    if ratio is None:
        return []
    return [("TP communication over linear layers' GEMM time", per_cent(ratio, 0))]
