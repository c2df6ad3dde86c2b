"""PD406: compute-bound steps, whose power may as well go to the SMs."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import why_hidden
from perfdoc.rules.facts.precision import linear_share

META = Meta(
    code="PD406",
    title="Compute-bound steps at the default clocks",
    why="Matrix products wait for the SMs, not for memory. Some GPUs can trade memory clock for core clock.",
    sources=("seed 000", "seed 001"),
    topic="clock",
    needs=("trace", "hardware"),
    advice=("clock_vboost",),
)

MIN_LINEAR_FRAC = 0.5
"""Of the window: linear layers' products."""
_UNMEASURED = "the linear layers' share was not measured"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where linear layers' products take `MIN_LINEAR_FRAC` of the window on a Hopper
    or Blackwell GPU of a server; what the clocks are, no capture says."""
    if case.on_host:
        return Verdict(state="not_applicable", reason="the ranks train on the CPU")
    gpu = case.gpu
    if gpu is None:
        return Verdict(state="skipped", reason="what the GPUs are is not known")
    if gpu.architecture in ("ampere", "ada") or gpu.nvlink_domain == 1:
        return Verdict(state="not_applicable", reason="these GPUs have no such switch")
    share = linear_share(case)
    if share is None:
        return Verdict(state="skipped", reason=why_hidden(case) or _UNMEASURED)
    evidence = [Evidence(label="linear layers' products, of the window", value=per_cent(share))]
    if share < MIN_LINEAR_FRAC:
        reason = "products do not fill the step: a higher core clock would do little"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        level="information",
        reason="products fill the step; whether the core clock is boosted is not in a capture",
        evidence=evidence,
        remedy="Unless the launcher does so already: on each node, as root, before training: "
        "sudo nvidia-smi boost-slider --vboost 1. Not every system has it.",
        verify="nvidia-smi -q -d CLOCK shows higher SM clocks; run again: products are shorter, and norms "
        "and element-wise kernels no longer by more.",
        false_alarm="GPUs that are limited by power or temperature do not clock higher.",
    )
