"""Whether a capture shows the kernels that rules about kernels judge by."""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.kernel_class import KernelClass
from perfdoc.rules.case import Case

_HIDDEN = (
    "CUDA graphs were traced as a whole, which hides their kernels: nsys --cuda-graph-trace=node shows them"
)


def why_hidden(case: Case) -> str:
    """Why kernels are not all there; empty where they are."""
    return _HIDDEN if any(rank.host.graphs.whole_graphs for rank in case.ranks) else ""


def fused_attention_runs(case: Case) -> bool:
    """Whether any kernel is one of fused attention."""
    return any(k.kernel_class is KernelClass.ATTENTION for r in case.ranks for k in r.kernel_times)
