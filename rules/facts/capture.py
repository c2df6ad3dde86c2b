"""What a capture does not show: kernels hidden in graphs, and steps apart from a job's start."""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Need, applies, capability, skipped

_HIDDEN = (
    "CUDA graphs were traced as a whole, which hides their kernels: nsys --cuda-graph-trace=node shows them"
)


def why_hidden(case: Case) -> str:
    """Why kernels are not all there; empty where they are."""
    return _HIDDEN if any(rank.host.graphs.whole_graphs for rank in case.ranks) else ""


KERNELS = Need(
    words="the kernels inside CUDA graphs, if any",
    missing=lambda case: skipped(hidden) if (hidden := why_hidden(case)) else None,
)


def fused_attention_runs(case: Case) -> bool:
    """Whether any kernel is one of fused attention."""
    return any(k.kernel_class is KernelClass.ATTENTION for r in case.ranks for k in r.kernel_times)


def why_start_up_counts(case: Case) -> str:
    """Why shares of the window are not shares of training: steps are not known, and nobody asked for this
    window. Empty where they are."""
    if any(r.window.kind == "capture" and "asked for" not in r.window.reason for r in case.ranks):
        return "the window is the whole capture, start-up included: steps are not known (see PD902)"
    return ""


LAUNCHES = capability("launch_correlation", "the launch of each kernel")
STEADY = Need(
    words="steps, or a window that was asked for",
    missing=lambda case: skipped(why) if (why := why_start_up_counts(case)) else None,
)
OWN_WINDOW = applies(
    "a window chosen by perfdoc",
    lambda case: not any(r.window.kind == "user" or "asked for" in r.window.reason for r in case.ranks),
    "the window was given",
)
