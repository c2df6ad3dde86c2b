"""PD111: tensor-parallel communication that no compute hides."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.exposed import ceiling_of_transfer, judged
from perfdoc.rules.facts.hidden import hidden_frac, level_of, queues, surely_saved, time_ns
from perfdoc.rules.facts.overlaps import TP_NEEDS, TP_OVERLAP, shapes_change, tp_overlap

META = Meta(
    code="PD111",
    title="Exposed tensor-parallel communication",
    why="Every layer gathers and scatters activations between its products. What does not run beside a "
    "product is paid in each layer, forward and backward.",
    sources=("seed 000", "seed 001", "seed 003", "seed 004"),
    topic="comm_overlap",
    time=("exposed_comm.tp",),
    needs=TP_NEEDS,
    advice=(
        "tp_overlap_enable",
        "tp_overlap_cfg",
        "tp_overlap_splits",
        "tp_overlap_tail_exposed",
        "tp_overlap_static",
        "tp_fp8_buf",
    ),
)

USUAL_SPLITS = 4
"""Of a product that feeds a reduce-scatter: fewer leave a larger last piece exposed, more make products that
fill the GPU badly."""
USUAL_SM = 16
"""For the communication kernel of a bulk or pipelined overlap."""
_SPLITS = "tp_overlap_num_splits"
_MOVING = (
    "Shapes change from step to step here (verl packs each batch anew), and user buffers take one shape "
    "only: tp_comm_overlap is not advised."
)
_LOCAL = (
    "Layers of megatron-core's own (transformer_impl local) have no user buffers: Transformer Engine's do. "
    "Less tensor parallelism moves fewer bytes with either."
)
_FIXED = (
    "tp_comm_overlap is on. Look in the communication table for which gathers and scatters stay exposed, and "
    "set their method, SMs and splits one product at a time (tp_comm_overlap_cfg); the recipes' own are the "
    "best start."
)
_QUEUED = "Its collectives stand in a queue behind later kernels: see PD112 first."
_BACKWARD = (
    "In the backward pass products that need no communication stand behind it: megatron-core runs them "
    "beside it by itself, with CUDA_DEVICE_MAX_CONNECTIONS=1 up to Hopper (PD112). The gain is of that alone."
)
_UNKNOWN = "Give the job's configuration (--config FILE): whether tp_comm_overlap is set is not known."
_NOTHING = "Less tensor parallelism, or context parallelism in part of its place, moves fewer bytes: see "
"PD384."


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks: as a problem where the overlap is known to
    be off or next to nothing is hidden, unless the replay finds that it stands in a queue (PD112). Where the
    overlap is on, one piece in `USUAL_SPLITS` (or in as many more as are set) stays exposed by design, and as
    little passes."""
    nothing, evidence = judged(case, "tp")
    if nothing is not None:
        return nothing
    on, off = case.is_set_to(TP_OVERLAP, True), case.is_set_to(TP_OVERLAP, False)
    splits = max(case.number(_SPLITS) or 0, USUAL_SPLITS)
    hidden = hidden_frac(case, "tp") or 0.0
    if on and 1 - hidden <= 1 / splits:
        reason = f"the last of {splits} pieces of each output stays exposed by design, and no more is"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    advice = [*tp_overlap(case), *(_tuned(case) if on else ())]
    evidence += _products(case)
    queued = queues(case)
    remedy = _FIXED if on else "" if advice else _why_not(case) if off else _UNKNOWN
    level = level_of(case, "tp", switched_off=off and bool(advice))
    beside = None if advice or queued else surely_saved(case, "overlapped_tp")
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "tp"),
        level="information" if queued and not off else level,
        reason="the products around it do not hide it",
        evidence=evidence,
        advice=advice,
        remedy=" ".join(w for w in (_QUEUED if queued else _BACKWARD if beside else "", remedy) if w),
        otherwise=_NOTHING,
        gain=beside or ceiling_of_transfer(case, "tp"),
        verify="Run again: exposed TP communication in the ledger falls; gathers and scatters become copies "
        "or user-buffer kernels beside products.",
        false_alarm="Ranks that were not compared and wait for a late one; or an embedding and loss that "
        "share the group and have no product to hide it.",
    )


def _why_not(case: Case) -> str:
    """Why an overlap that is off is not advised."""
    return _MOVING if shapes_change(case) else _LOCAL


def _tuned(case: Case) -> Iterator[Advice]:
    splits, sms = case.number(_SPLITS), case.number("tp_overlap_num_sm")
    if splits is not None and splits < USUAL_SPLITS:
        why = f"leaves 1/{USUAL_SPLITS} of each scatter exposed instead of 1/{splits}"
        yield advise(knob=_SPLITS, to=USUAL_SPLITS, why=why, costs="smaller products, one for each piece")
    if sms is not None and sms < USUAL_SM:
        why = f"{sms} SMs move too little beside a product"
        costs = "products have as many SMs less"
        yield advise(knob="tp_overlap_num_sm", to=USUAL_SM, why=why, costs=costs)
    known, fp8 = case.setting("fp8")
    longer = _communication_over_products(case)
    if known and fp8 is not None and case.is_set_to("tp_overlap_fp8_buf", False) and (longer or 0.0) > 1.0:
        yield advise(
            knob="tp_overlap_fp8_buf",
            to=True,
            why="scatters in 1 byte: communication takes longer than the products that are to hide it",
            costs="outputs are rounded to FP8 before they are summed; compare the loss",
        )


def _communication_over_products(case: Case) -> float | None:
    """Time of TP communication by that of linear layers' products, over all ranks; None without the
    latter."""
    products = [r.kernel_parts.linear_ns for r in case.ranks]
    total = sum(ns or 0 for ns in products)
    return None if None in products or not total else time_ns(case, "tp") / total


def _products(case: Case) -> list[Evidence]:
    ratio = _communication_over_products(case)
    if ratio is None:
        return []
    return [
        Evidence(label="TP communication by the time of linear layers' products", value=per_cent(ratio, 0))
    ]
