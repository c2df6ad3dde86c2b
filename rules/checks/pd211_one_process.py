"""One process that drives several GPUs (torch.nn.DataParallel) copies the weights to all of them in each
step, gathers outputs and gradients on the first, and launches for each in turn: its threads share one
interpreter."""

from statistics import fmean

import numpy as np

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.timeline.rank import StepTimeline
from perfdoc.results.figures import brief
from perfdoc.results.losses import WORTH_A_VERDICT_FRAC
from perfdoc.results.ranks import LEAVES
from perfdoc.rules.engine.assumptions import TRAINING, Assumes
from perfdoc.rules.engine.gain import RankMeasurement, upper_bound
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes

_IN_ORDER, _AMONG_PROCESSES = ("broadcast", "reduce"), {"all_reduce", "reduce_scatter", "all_gather"}
"""What weights and gradients go by, and what processes of their own would send instead."""

_LONGER = 1.15
"""As long as the others: the GPU that gathers what all computed has the loss and the update besides."""
_SHOWN = 8
"""GPUs."""


def _not_replicated(case: Case) -> Missing | None:
    processes = {(c.path, rank.device.process) for c in case.captures for rank in c.ranks}
    several = len(case.ranks) > 1 and len(processes) == 1
    if several and ("replicates" in case.program.marks or _is_shown(case)):
        return None
    return not_applicable("no process spreads the batch over several GPUs")


def _is_shown(case: Case) -> bool:
    """Whether weights go out, all compute, and gradients come back to one GPU, which does more than the
    others. Layers split over GPUs send both ways in turn, and sharded optimizers send weights last."""
    sent = {row.collective for rank in case.ranks for row in rank.communication}
    first, *others = sorted(case.ranks, key=lambda rank: -rank.ledger.compute)
    updating = [any(k.kernel_class is KernelClass.OPTIMIZER for k in r.kernel_times) for r in case.ranks]
    more = sum(updating) == 1 or first.ledger.compute >= _LONGER * others[0].ledger.compute
    ways = sent.issuperset(_IN_ORDER) and not sent & _AMONG_PROCESSES
    return ways and more and all(r.timeline and all(_returns(r, s) for s in r.timeline) for r in others)


def _returns(rank: RankMeasurement, step: StepTimeline) -> bool:
    """Whether most of its compute of the step is after the last broadcast and before the first reduce."""
    calls, track = rank.calls, step.tracks["ledger"].segments
    inside = (calls.start_ns >= step.start_ns) & (calls.start_ns < step.end_ns)
    out, back = (inside & np.array([o == w for o in calls.operations])[calls.operation] for w in _IN_ORDER)
    begin, end = calls.end_ns[out].max(initial=step.start_ns), calls.start_ns[back].min(initial=step.end_ns)
    start, took = (of[track.code == LEAVES.index("compute")] for of in (track.start_ns, track.duration_ns))
    between = np.maximum(np.minimum(start + took, end) - np.maximum(start, begin), 0)
    return bool(out.any() and back.any() and between.sum() * 2 > took.sum())


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
    each = [r.ledger.compute / case.units_of(r) for r in case.ranks]
    whole = [r.ledger.total / case.units_of(r) for r in case.ranks]
    ordered = sorted(zip((r.device.ordinal for r in case.ranks), each, strict=True))
    shown = ", ".join(f"{brief(ns)} (GPU {gpu})" for gpu, ns in ordered[:_SHOWN])
    evidence = [(f"compute of a {case.unit}", shown)]
    lost = max(whole) - fmean(each)
    if lost < WORTH_A_VERDICT_FRAC * max(whole):
        return passes(evidence)
    gpus, likely = len(case.ranks), "" if "replicates" in case.program.marks else "likely "
    return fires(
        reason=f"one process {likely}spreads each batch over {gpus} GPUs",
        evidence=evidence,
        remedy=f"torchrun --nproc-per-node {gpus} train.py with DistributedDataParallel(model, "
        f"device_ids=[local_rank]) and a DistributedSampler; 1/{gpus} of the batch for each. No weights are "
        "copied, no outputs gathered on the first GPU, and gradients are reduced during the backward pass.",
        gain=upper_bound(lost / 1e6, "all but compute, evenly on all GPUs"),
        blames=f"One process {likely}spreads each batch over {gpus} GPUs, as torch.nn.DataParallel does",
        verify="Run again: each GPU computes for as long, and most of the step.",
        false_alarm="A program that sends by hand what it reduces on one GPU.",
    )
