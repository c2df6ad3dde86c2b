"""GEMMs wait for the SMs, not for memory. Some GPUs can trade memory clock for core clock."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, applies, given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.precision import LINEAR_SHARE, linear_share
from perfdoc.rules.facts.roofline import lost_ns


def _has_slider(case: Case) -> bool:
    gpu = case.gpu
    return gpu is not None and gpu.architecture not in ("ampere", "ada") and gpu.nvlink_domain != 1


META = Meta(
    title="Compute-bound steps at the default clocks",
    action="Raise the core clock",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="clock",
    needs=(
        GPUS,
        GPU_MODEL,
        applies("GPUs with a boost slider", _has_slider, "these GPUs have no boost slider"),
        LINEAR_SHARE,
    ),
    advice=("clock_vboost",),
    for_servers=True,
)

MIN_LINEAR_FRAC = 0.5
"""Of the window: GEMMs of linear layers."""
MAX_CLOCK_FRAC = 0.02
"""Of compute, over all ranks: lost to clocks below the highest. Above, power or heat limits the clock."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where GEMMs of linear layers take `MIN_LINEAR_FRAC` of the window on a Hopper
    or Blackwell GPU of a server. Clocks are known where Nsight sampled them (--gpu-metrics-devices): where
    lower ones cost `MAX_CLOCK_FRAC` of compute, power or heat limits them."""
    share = given(linear_share(case))
    evidence = [("GEMMs of linear layers, of the window", per_cent(share))]
    if share < MIN_LINEAR_FRAC:
        return passes(evidence, "the step is not GEMM-bound: a higher core clock gains little")
    each = [rank for rank in case.ranks if rank.efficiency.state == "measured"]
    lost, compute = sum(lost_ns(r, "clock") for r in each), sum(r.efficiency.compute_ns for r in each)
    if lost > MAX_CLOCK_FRAC * compute:
        low = ("SM clocks below the highest, of compute", per_cent(lost / compute))
        return informs(
            reason="the step is GEMM-bound, and power or heat limits its clock",
            evidence=[*evidence, low],
            action="Find what limits the core clock",
            remedy="nvidia-smi -q -d PERFORMANCE says what limits the clock: raise the power limit "
            "(nvidia-smi -q -d POWER) if it is below the board's, or improve the cooling. A boost of the "
            "core clock does not help.",
            verify="Run again with --gpu-metrics-devices: what the clock costs falls.",
            false_alarm="A GPU that was idle before takes a while to raise its clock.",
        )
    return informs(
        reason="the step is GEMM-bound; whether the clock is boosted was not seen",
        evidence=evidence,
        remedy="Unless the launcher does so already: on each node, as root, before training: "
        "sudo nvidia-smi boost-slider --vboost 1. Not every system has it.",
        verify="nvidia-smi -q -d CLOCK shows higher SM clocks; run again: GEMMs are shorter, and norms "
        "and element-wise kernels no longer by more.",
        false_alarm="GPUs that are limited by power or temperature do not clock higher.",
    )
