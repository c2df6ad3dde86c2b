"""Where kernel time goes in the model: its parts, forward and backward; docs/kernels.md has the rules.

A kernel belongs to the innermost range around its launch that names a part of the model. Where there is none,
autograd's sequence numbers may lead to the forward operator whose gradient it computes; else its own name may
tell (attention, norms, the optimizer); else the part is unknown.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, exact_sum, union
from perfdoc.analyzers.base.rows import kept, picked, said_by_names, sum_by
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKinds
from perfdoc.analyzers.kernels.attributed import EVIDENCE, AttributedKernels, Attribution, recomputed
from perfdoc.analyzers.kernels.fusion import find_unfused, find_unfused_attention, text_of
from perfdoc.analyzers.kernels.optimizer import optimizer_loop
from perfdoc.analyzers.kernels.part_names import PARTS, Phase
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.kernels import PHASES, KernelPartsAnalysis, PartTime
from perfdoc.results.ranks import KernelsOnly
from perfdoc.traces import Trace
from perfdoc.traces.table import I32, Bool, in_order


@dataclass(frozen=True, kw_only=True)
class NamedTime:
    """Kernels of one name."""

    name: str
    short_name: str
    """Function name without arguments and template parameters."""
    kernel_class: KernelClass
    count: int
    total_ns: int
    """Sum of durations clipped to the window; concurrent kernels count twice."""
    apart_ns: int = 0
    """Sum of what passed since the kernel before on the stream of each: see apart_ns."""


def kernel_times(
    trace: Trace, activity: Activity, kinds: KernelKinds, start_ns: int, end_ns: int
) -> list[NamedTime]:
    """Time of every kernel name of one device that runs inside [start, end)."""
    rows = activity.kernel_rows
    start, end = picked(trace.kernels.start_ns, rows), picked(trace.kernels.end_ns, rows)
    inside = (start < end_ns) & (end > start_ns)
    rows, start, end = kept(inside, rows, start, end)
    duration = np.minimum(end, end_ns) - np.maximum(start, start_ns)
    name = picked(trace.kernels.full_name, rows)
    count = np.bincount(name, minlength=len(trace.strings))
    total = sum_by(name, duration, len(trace.strings))
    apart = sum_by(name, apart_ns(trace, activity, rows), len(trace.strings))
    kind_of = np.zeros(len(trace.strings), np.int64)
    kind_of[name] = picked(kinds.kind, rows)
    short_of = np.zeros(len(trace.strings), np.int64)
    short_of[name] = picked(trace.kernels.name, rows)
    return [
        NamedTime(
            name=trace.strings[i],
            short_name=trace.strings[short_of[i]],
            kernel_class=kinds.kinds[kind_of[i]].kernel_class,
            count=int(count[i]),
            total_ns=int(total[i]),
            apart_ns=int(apart[i]),
        )
        for i in np.flatnonzero(count).tolist()
    ]


def kernels_only(trace: Trace, activity: Activity, window_ns: tuple[int, int] | None = None) -> KernelsOnly:
    """Count kernels of one device over the capture, or clipped to a window."""
    rows = activity.kernel_rows
    start, end = picked(trace.kernels.start_ns, rows), picked(trace.kernels.end_ns, rows)
    comm = activity.kernel_is_comm
    if window_ns is not None:
        inside = (start < window_ns[1]) & (end > window_ns[0])
        start, end, comm = kept(inside, start, end, comm)
    if not len(start):
        a, b = window_ns if window_ns is not None else (0, 0)
    else:
        a, b = window_ns if window_ns is not None else (int(start.min()), int(end.max()))
    compute, communication = activity.kernel_compute.clip(a, b), activity.kernel_comm.clip(a, b)
    hidden_ns = compute.overlap_ns(communication)
    compute_ns, comm_ns = compute.total_ns, communication.total_ns
    busy_ns = compute_ns + comm_ns - hidden_ns
    return KernelsOnly(
        kernels=len(start),
        comm_kernels=int(np.count_nonzero(comm)),
        span_ns=b - a,
        busy_ns=busy_ns,
        compute_ns=compute_ns,
        comm_ns=comm_ns,
        hidden_ns=hidden_ns,
        exposed_ns=comm_ns - hidden_ns,
        idle_ns=b - a - busy_ns,
    )


def apart_ns(trace: Trace, activity: Activity, rows: I64) -> I64:
    """Of each kernel the time since the one before on its stream: on the host, its own launch included, or,
    where that is longer or not known, on the device. rows: kernels by start."""
    launched_ns, of_kernels = np.full(len(trace.kernels), -1, np.int64), activity.kernel >= 0
    launched_ns[activity.kernel[of_kernels]] = activity.launch_end_ns[of_kernels]
    order = in_order(picked(trace.kernels.stream, rows))
    mine = rows[order]
    launch, stream = launched_ns[mine], trace.kernels.stream[mine]
    idle = trace.kernels.start_ns[mine][1:] - trace.kernels.end_ns[mine][:-1]
    between = np.where((launch[:-1] >= 0) & (launch[1:] >= 0), np.diff(launch), 0)
    found = np.zeros(len(rows), np.int64)
    found[order[1:]] = np.where(stream[1:] == stream[:-1], np.maximum(np.maximum(between, idle), 0), 0)
    return found


_MAY_HIDE_ATTENTION = (
    "attention is not fused and no range names its GEMMs: those of queries, keys and values are included"
)
_GROUPED_NAME = pattern_of(
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
    apart = apart_ns(view.trace, view.activity, rows)
    parts = _rows(found, duration, apart)
    total, computing = exact_sum(duration), exact_sum(duration[~is_comm])
    unknown = sum(p.total_ns for p in parts if p.part == "unknown")

    is_gemm = classes == KernelClass.GEMM
    of_experts = (found.part == PARTS.index("moe")) | (found.part == PARTS.index("moe_experts"))
    names = np.where(is_gemm, view.trace.kernels.full_name.take(rows), -1)
    grouped = is_gemm & (grouped_by_name(view, names) | of_experts)
    in_core = is_gemm & context.core & ~grouped
    linear = is_gemm & ~grouped & ~in_core & (found.phase != Phase.OPTIMIZER)  # Muon multiplies, too
    attention = (classes == KernelClass.ATTENTION) | in_core
    written = text_of(view, rows)
    unfused = find_unfused_attention(view, rows, duration, apart, classes, written)
    told = context.core.any() or (attention.any() and not unfused.forwards)
    linear_ns, grouped_ns, attention_ns = (exact_sum(duration[of]) for of in (linear, grouped, attention))
    recompute_ns, recompute_reason = recomputed(view, lanes, context, found, duration, is_comm)
    return KernelPartsAnalysis(
        state="measured",
        reason="" if lanes else "no range names a part of the model: parts come from kernel names alone",
        remedy="" if lanes else "Put the model's parts into NVTX or record_function ranges.",
        kernel_ns=total,
        compute_kernel_ns=computing,
        parts=parts,
        unknown_frac=unknown / computing if computing else None,
        linear_ns=linear_ns,
        linear_frac=linear_ns / total if total else None,
        linear_window_frac=_window_frac(view, rows[linear]),
        linear_reason="" if told else _MAY_HIDE_ATTENTION,
        grouped_linear_ns=grouped_ns,
        grouped_linear_frac=grouped_ns / total if total else None,
        attention_ns=attention_ns,
        attention_frac=attention_ns / total if total else None,
        recompute_ns=recompute_ns,
        recompute_frac=recompute_ns / total if recompute_ns is not None and total else None,
        recompute_reason=recompute_reason,
        padding_frac=None,
        padding_reason="a capture does not say how many tokens of a batch are padding",
        unfused=find_unfused(view, rows, duration, apart, context.accumulates, written),
        optimizer=optimizer_loop(view, rows, duration, context.phase, classes),
        unfused_attention=unfused,
    )


def _not_measured(reason: str, remedy: str) -> KernelPartsAnalysis:
    return KernelPartsAnalysis.missing(
        reason, remedy, linear_reason=reason, recompute_reason=reason, padding_reason=reason
    )


def _rows(found: Attribution, duration: I64, apart: I64) -> list[PartTime]:
    code = (found.part.astype(np.int64) * len(PHASES) + found.phase) * len(EVIDENCE) + found.evidence
    size = len(PARTS) * len(PHASES) * len(EVIDENCE)
    count, total = np.bincount(code, minlength=size), sum_by(code, duration, size)
    between = sum_by(code, apart, size)
    rows = [
        PartTime(
            part=PARTS[c // len(EVIDENCE) // len(PHASES)],
            phase=PHASES[c // len(EVIDENCE) % len(PHASES)],
            evidence=EVIDENCE[c % len(EVIDENCE)],
            count=int(count[c]),
            total_ns=int(total[c]),
            apart_ns=int(between[c]),
        )
        for c in np.flatnonzero(count).tolist()
    ]
    return sorted(rows, key=lambda r: (-r.total_ns, r.part, r.phase, r.evidence))


def grouped_by_name(view: DeviceView, names: I32) -> Bool:
    """Whether a GEMM's name, an index into Trace.strings or -1, says that it is grouped over experts."""
    return said_by_names(
        view.trace.strings, names, lambda name: _GROUPED_NAME.search(name[:4096]) is not None, False
    )


def _window_frac(view: DeviceView, rows: I64) -> float | None:
    kernels, window = view.trace.kernels, view.window
    if window.duration_ns <= 0:
        return None
    ran = union(kernels.start_ns[rows], kernels.end_ns[rows]).clip(window.start_ns, window.end_ns)
    return ran.total_ns / window.duration_ns
