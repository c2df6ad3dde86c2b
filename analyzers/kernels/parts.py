"""Where kernel time goes in the model: its parts, forward and backward; docs/contention.md has the rules.

A kernel belongs to the innermost range around its launch that names a part of the model. Where there is none,
autograd's sequence numbers may lead to the forward operator whose gradient it computes; else its own name may
tell (attention, norms, the optimizer); else the part is unknown.
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum, union
from perfdoc.analyzers.base.names import said_by_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.kernels.attribution import EVIDENCE, Attribution, recomputed
from perfdoc.analyzers.kernels.fusion import find_unfused, text_of
from perfdoc.analyzers.kernels.optimizer import optimizer_loop
from perfdoc.analyzers.kernels.part_names import PARTS
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.analyzers.kernels.unfused_attention import find_unfused_attention
from perfdoc.results.kernels import PHASES, KernelPartsAnalysis, PartTime
from perfdoc.traces.table import Bool

_MAY_HIDE_ATTENTION = (
    "attention is not fused and no range names its GEMMs: those of queries, keys and values are included"
)
_GROUPED_NAME = re.compile(
    r"(?i)group(?:ed)?_?(?:gemm|mm|matmul)|groupproblem|moe|expert|(?:^|_)t?gmm(?:_|$)"
)


def kernel_parts(view: DeviceView, kernels: AttributedKernels | None) -> KernelPartsAnalysis:
    """The parts of the model on one device. kernels: as attributed_kernels has them."""
    if view.activity.on_host:
        return _not_measured("the rank trains on the CPU, which runs no kernels", "")
    if kernels is None:
        return _not_measured(
            "no kernel rows inside the window (whole CUDA graphs hide theirs)",
            "Capture graphs by node: nsys --cuda-graph-trace=node.",
        )
    rows, duration, classes = kernels.rows, kernels.duration_ns, kernels.classes
    lanes, context, found, is_comm = kernels.lanes, kernels.context, kernels.found, kernels.is_comm
    parts = _rows(found, duration)
    total, computing = exact_sum(duration), exact_sum(duration[~is_comm])
    unknown = sum(p.total_ns for p in parts if p.part == "unknown")

    is_gemm = classes == KernelClass.GEMM
    of_experts = np.isin(found.part, [PARTS.index("moe"), PARTS.index("moe_experts")])
    grouped = is_gemm & (_grouped(view, rows, is_gemm) | of_experts)
    in_core = is_gemm & context.core & ~grouped
    linear = is_gemm & ~grouped & ~in_core
    attention = (classes == KernelClass.ATTENTION) | in_core
    written = text_of(view, rows)
    unfused = find_unfused_attention(view, rows, duration, classes, written)
    told = context.core.any() or (attention.any() and not unfused.forwards)
    recompute_ns, recompute_reason = recomputed(view, lanes, context, found, duration, is_comm)
    return KernelPartsAnalysis(
        state="measured",
        reason="" if lanes else "no range names a part of the model: parts come from kernel names alone",
        remedy="" if lanes else "Put the model's parts into NVTX or record_function ranges.",
        kernel_ns=total,
        compute_kernel_ns=computing,
        parts=parts,
        unknown_frac=unknown / computing if computing else None,
        linear_ns=exact_sum(duration[linear]),
        linear_frac=exact_sum(duration[linear]) / total if total else None,
        linear_window_frac=_window_frac(view, rows[linear]),
        linear_reason="" if told else _MAY_HIDE_ATTENTION,
        grouped_linear_ns=exact_sum(duration[grouped]),
        grouped_linear_frac=exact_sum(duration[grouped]) / total if total else None,
        attention_ns=exact_sum(duration[attention]),
        attention_frac=exact_sum(duration[attention]) / total if total else None,
        recompute_ns=recompute_ns,
        recompute_frac=recompute_ns / total if recompute_ns is not None and total else None,
        recompute_reason=recompute_reason,
        padding_frac=None,
        padding_reason="a capture does not say how many tokens of a batch are padding",
        unfused=find_unfused(view, rows, duration, context.accumulates, written),
        optimizer=optimizer_loop(view, rows, duration, context.phase, classes),
        unfused_attention=unfused,
    )


def _not_measured(reason: str, remedy: str) -> KernelPartsAnalysis:
    return KernelPartsAnalysis.missing(
        reason, remedy, linear_reason=reason, recompute_reason=reason, padding_reason=reason
    )


def _rows(found: Attribution, duration: I64) -> list[PartTime]:
    code = (found.part.astype(np.int64) * len(PHASES) + found.phase) * len(EVIDENCE) + found.evidence
    size = len(PARTS) * len(PHASES) * len(EVIDENCE)
    count, total = np.bincount(code, minlength=size), sum_by(code, duration, size)
    rows = [
        PartTime(
            part=PARTS[c // len(EVIDENCE) // len(PHASES)],
            phase=PHASES[c // len(EVIDENCE) % len(PHASES)],
            evidence=EVIDENCE[c % len(EVIDENCE)],
            count=int(count[c]),
            total_ns=int(total[c]),
        )
        for c in np.flatnonzero(count).tolist()
    ]
    return sorted(rows, key=lambda r: (-r.total_ns, r.part, r.phase, r.evidence))


def _grouped(view: DeviceView, rows: I64, is_gemm: Bool) -> Bool:
    """Whether a GEMM's name says that it is grouped over experts."""
    names = np.where(is_gemm, view.trace.kernels.full_name[rows], -1)
    return said_by_names(
        view.trace.strings, names, lambda name: _GROUPED_NAME.search(name[:4096]) is not None, False
    )


def _window_frac(view: DeviceView, rows: I64) -> float | None:
    kernels, window = view.trace.kernels, view.window
    if window.duration_ns <= 0:
        return None
    ran = union(kernels.start_ns[rows], kernels.end_ns[rows]).clip(window.start_ns, window.end_ns)
    return ran.total_ns / window.duration_ns
