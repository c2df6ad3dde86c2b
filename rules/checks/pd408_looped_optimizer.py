"""Every parameter takes its own small kernels, each reads and writes the whole tensor again, and the device
idles between them for their launches. A fused update is a few kernels for all parameters."""

from collections.abc import Iterator

from perfdoc.results.figures import brief, per_cent
from perfdoc.results.kernels import OptimizerLoop
from perfdoc.rules.engine.gain import (
    Gain,
    RankMeasurement,
    bounded,
    ceiling,
    predicted,
    time_evidence,
    time_share,
    worth_frac,
)
from perfdoc.rules.engine.needs import GPUS, WINDOW, given, on_some_rank
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.graphs import of_parts, without_kernels

META = Meta(
    title="Optimizer that loops over the parameters",
    action="Fuse the optimizer step",
    sources=("PyTorch torch.optim, Performance: for-loop, foreach, fused",),
    topic="fusion",
    needs=(GPUS, KERNELS, on_some_rank("classified kernels", lambda r: r.kernel_parts), WINDOW),
)

MIN_FRAC = 0.01
"""Of the step: predicted gain of a fused update; of the window where nothing is predicted: the most that one
can save."""
LONG_FRAC = 0.3
"""Of the window, in an update that is no loop: beside a batch that fills the device Adam's takes a few %."""
_SELDOMER = (
    "An update takes as long for any batch: accumulate more micro-batches, or take larger ones, before each. "
    "Shard it over data-parallel ranks (ZeRO, a distributed optimizer). Matrices that it multiplies (Muon, "
    "Shampoo, SOAP): in bf16, those of one shape as a batch, roots every so many steps."
)
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_FOREACH = ("Adadelta", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
"""Classes of torch.optim by what they take, release 2.9; LBFGS and SparseAdam take neither."""
_BY_HAND = "torch._foreach_* over the list of all parameters, or torch.compile of its step"
_UNKNOWN = (
    "torch.optim.AdamW(..., fused=True), or foreach=True; SGD and Adam take both. zero_grad() launches "
    f"nothing with set_to_none=True. An optimizer of your own: {_BY_HAND}."
)
_MOST = "idle time between the optimizer's kernels plus their run time, less one kernel per parameter"
_MEGATRON = (
    "Megatron-core takes the FusedAdam of Transformer Engine or Apex where one is installed, else PyTorch's: "
    "install one and look for the fallback's warning in the log."
)


def evaluate(case: Case) -> Verdict:
    """Fires where a fused update saves `MIN_FRAC` of the step, by replay. Without one, where it can: the idle
    time between these kernels, or as much as the host is in the loop, and of their own time all but one
    kernel for each parameter, which still reads and writes it."""
    gain = predicted(case, "fused_optimizer")
    replayed = gain is not None and gain.is_predicted
    share = worth_frac(case, "fused_optimizer") if replayed else given(case.share(_most_ns))
    label = "optimizer loop, idle time between its kernels included"
    evidence = time_evidence(case, label, case.share(_of) or 0.0, _of)
    found = max((_loop(r) for r in case.ranks), key=lambda o: o.kernels)
    if share < MIN_FRAC:
        return _long_update(case) or passes(evidence if found.kernels else [])
    how = "a range names it" if found.evidence == "range" else "by its sequence: a square root per parameter"
    return fires(
        reason=f"the optimizer updates one parameter after the other ({how})",
        evidence=[*evidence, *_figures(case, found)],
        remedy=_MEGATRON if case.framework == "megatron" else " ".join(_settings(case)),
        sized_by=_sized_by(case, gain),
        gain=bounded(gain, ceiling(case, _most_ns, _MOST)),
        verify="Run again: the optimizer is a few multi_tensor_apply or fused kernels.",
        false_alarm="A window that holds one optimizer step and few of the micro-batches before it.",
    )


def _long_update(case: Case) -> Verdict | None:
    """Of a fused update, or one whose time is in products of matrices; None where it takes little."""
    share, evidence = time_share(case, "kernels of the optimizer's update", _update_ns)
    if share < LONG_FRAC:
        return None
    who = " and ".join(sorted(case.program.optimizers)[:2]) or "the optimizer"
    return fires(
        action="Make the optimizer's update a smaller part of the step",
        reason=f"the update of {who} takes {per_cent(share)} of the {case.unit}",
        evidence=evidence,
        remedy=_SELDOMER,
        gain=without_kernels(
            case, _update_ns, _update_apart_ns, "all of it, as beside far more micro-batches"
        ),
        verify="Run again: more tokens a second, and a smaller part of the step in the optimizer.",
        false_alarm="A capture with fewer micro-batches a step than the real run has.",
    )


_update_ns, _update_apart_ns = of_parts(lambda p: p.phase == "optimizer" and p.part != "communication")


def _sized_by(case: Case, gain: Gain | None) -> str:
    """What a replay gains beyond the loop's own part of the window."""
    host_ms = case.per_unit_ms(lambda r: _loop(r).host_ns) or 0.0
    beyond = gain is not None and host_ms > (gain.mid_ms or 0.0) > (case.per_unit_ms(_of) or 0.0)
    return f"the host is in this loop for {brief(host_ms * 1e6)}: what follows comes sooner" if beyond else ""


def _settings(case: Case) -> Iterator[str]:
    """By the optimizers' names; a fused one that runs beside them is not meant."""
    named = sorted(name for name in case.program.optimizers if not name.startswith("Fused"))
    if not named:
        yield (
            f"What loops is not the fused optimizer, which runs too: {_BY_HAND}."
            if "fused_optimizer" in case.program.marks
            else _UNKNOWN
        )
    for name in named:
        if name in _FUSED:
            trainer = next((words for mark, words in _TRAINERS if mark in case.program.marks), "")
            yield trainer or f"torch.optim.{name}(..., fused=True), or foreach=True."
        elif name in _FOREACH:
            yield f"torch.optim.{name}(..., foreach=True): it has no fused form."
        else:
            yield f"{name} has neither a fused nor a foreach form in PyTorch: {_BY_HAND}."


_TRAINERS = (
    ("transformers", 'TrainingArguments(optim="adamw_torch_fused").'),
    ("torchtitan", 'optimizer.implementation = "fused".'),
)


def _loop(rank: RankMeasurement) -> OptimizerLoop:
    return rank.kernel_parts.optimizer


def _of(rank: RankMeasurement) -> int:
    found = _loop(rank)
    return min(found.kernels_ns + found.idle_ns, rank.ledger.total)


def _most_ns(rank: RankMeasurement) -> int:
    """A fused kernel moves each tensor once: at least as much as one of the small ones does. How many of them
    there are for each is not always known: then nothing of their time is sure to stay. The host is ahead by
    no more than it was in the loop, which may end idle time that lies behind."""
    found, idle = _loop(rank), rank.ledger.idle
    stays = found.kernels_ns // found.kernels_per_tensor if found.kernels_per_tensor else 0
    ahead = min(found.host_ns, idle.host + idle.data + idle.launch_latency)
    return min(max(found.idle_ns, ahead) + found.kernels_ns - stays, rank.ledger.total)


def _figures(case: Case, found: OptimizerLoop) -> Iterator[Evidence]:
    steps = max(r.window.steps for r in case.ranks)
    per = max(steps, 1)
    yield (f"small kernels {'a step' if steps else 'in the window'}", f"{round(found.kernels / per):,}")
    if found.kernels_per_tensor is not None:
        yield ("for each parameter", f"{found.kernels_per_tensor} kernels")
    yield ("their time", brief(found.kernels_ns / per))
    of = found.idle_ns / max(found.idle_ns + found.kernels_ns, 1)
    yield ("idle between them", f"{brief(found.idle_ns / per)}, {per_cent(of)} of the optimizer's time")
