"""One process that drives several GPUs (torch.nn.DataParallel) copies the weights to all of them in each
step, gathers outputs and gradients on the first, and launches for each in turn: its threads share one
interpreter."""

from statistics import fmean

from perfdoc.results.figures import brief
from perfdoc.results.losses import WORTH_A_VERDICT_FRAC
from perfdoc.rules.engine.assumptions import TRAINING, Assumes
from perfdoc.rules.engine.gain import Gain
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes

_WEIGHTS, _AMONG_PROCESSES = {"broadcast", "reduce"}, {"all_reduce", "reduce_scatter", "all_gather"}
"""What weights and gradients go by, and what processes of their own would send instead."""

_SHOWN = 8
"""GPUs."""


def _not_replicated(case: Case) -> Missing | None:
    processes = {(c.path, rank.device.process) for c in case.captures for rank in c.ranks}
    sent = {row.collective for rank in case.ranks for row in rank.communication}
    shown = sent >= _WEIGHTS and not sent & _AMONG_PROCESSES
    if len(case.ranks) > 1 and len(processes) == 1 and (shown or "replicates" in case.program.marks):
        return None
    return not_applicable("no process spreads the batch over several GPUs")


META = Meta(
    title="One process for several GPUs",
    action="Run one process a GPU (DistributedDataParallel)",
    sources=("PyTorch DataParallel: DistributedDataParallel is recommended instead",),
    topic="host_overhead",
    needs=(GPUS, WINDOW, Need(words="several GPUs of one process", missing=_not_replicated)),
    assumes=(Assumes(of=TRAINING),),
)


def evaluate(case: Case) -> Verdict:
    """Fires where the GPUs together compute for `WORTH_A_VERDICT_FRAC` less than the step."""
    units = [max(r.window.steps, 1) if case.unit == "step" else 1 for r in case.ranks]
    each = [r.ledger.compute / n for r, n in zip(case.ranks, units, strict=True)]
    whole = [r.ledger.total / n for r, n in zip(case.ranks, units, strict=True)]
    ordered = sorted(zip((r.device.ordinal for r in case.ranks), each, strict=True))
    shown = ", ".join(f"{brief(ns)} (GPU {gpu})" for gpu, ns in ordered[:_SHOWN])
    evidence = [(f"compute of a {case.unit}", shown)]
    lost = max(whole) - fmean(each)
    if lost < WORTH_A_VERDICT_FRAC * max(whole):
        return passes(evidence)
    gpus = len(case.ranks)
    return fires(
        reason=f"one process spreads each batch over {gpus} GPUs",
        evidence=evidence,
        remedy=f"torchrun --nproc-per-node {gpus} train.py with DistributedDataParallel(model, "
        f"device_ids=[local_rank]) and a DistributedSampler; 1/{gpus} of the batch for each. No weights are "
        "copied, no outputs gathered on the first GPU, and gradients are reduced during the backward pass.",
        gain=Gain(
            low_ms=0.0,
            mid_ms=None,
            high_ms=lost / 1e6,
            method="ceiling",
            assumptions=["upper bound, not predicted: all but compute, evenly on all GPUs"],
        ),
        blames=f"One process spreads each batch over {gpus} GPUs, as torch.nn.DataParallel does",
        verify="Run again: each GPU computes for as long, and most of the step.",
        false_alarm="A program that sends by hand what it reduces on one GPU.",
    )
