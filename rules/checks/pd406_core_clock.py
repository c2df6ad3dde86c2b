"""PD406: compute-bound steps, whose power may as well go to the SMs."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPU_MODEL, GPUS, applies, given
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.precision import LINEAR_SHARE, linear_share


def _has_slider(case: Case) -> bool:
    gpu = case.gpu
    return gpu is not None and gpu.architecture not in ("ampere", "ada") and gpu.nvlink_domain != 1


META = Meta(
    code="PD406",
    title="Compute-bound steps at the default clocks",
    action="Raise the core clock",
    why="GEMMs wait for the SMs, not for memory. Some GPUs can trade memory clock for core clock.",
    sources=("seed 000", "seed 001"),
    topic="clock",
    needs=(
        GPUS,
        GPU_MODEL,
        applies("GPUs with a boost slider", _has_slider, "these GPUs have no boost slider"),
        LINEAR_SHARE,
    ),
    advice=("clock_vboost",),
)

MIN_LINEAR_FRAC = 0.5
"""Of the window: GEMMs of linear layers."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where GEMMs of linear layers take `MIN_LINEAR_FRAC` of the window on a Hopper
    or Blackwell GPU of a server; what the clocks are, no capture says."""
    share = given(linear_share(case))
    evidence = [Evidence(label="GEMMs of linear layers, of the window", value=per_cent(share))]
    if share < MIN_LINEAR_FRAC:
        reason = "the step is not GEMM-bound: a higher core clock gains little"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        level="information",
        reason="the step is GEMM-bound; a capture does not show whether the clock is boosted",
        evidence=evidence,
        remedy="Unless the launcher does so already: on each node, as root, before training: "
        "sudo nvidia-smi boost-slider --vboost 1. Not every system has it.",
        verify="nvidia-smi -q -d CLOCK shows higher SM clocks; run again: GEMMs are shorter, and norms "
        "and element-wise kernels no longer by more.",
        false_alarm="GPUs that are limited by power or temperature do not clock higher.",
    )
