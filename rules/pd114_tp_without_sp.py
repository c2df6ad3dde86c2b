"""PD114: tensor parallelism that leaves norms and dropouts whole on every rank."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.relayout import hidden_size, sequence_length
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD114",
    title="Tensor parallelism without sequence parallelism",
    why="Every rank of the group computes the same norms and dropouts and keeps the same activations. "
    "Divided by tokens they take a part of the time and memory, and the same bytes move, as gathers and "
    "scatters that overlap with products.",
    sources=("seed 003", "seed 004"),
    topic="comm_overlap",
    needs=("settings",),
    advice=("sp_default", "cp_tldr"),
)

_KNOB = "sequence_parallel"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where TP is above 1 and sequence_parallel is known to be off."""
    tp = case.degree("tensor_model_parallel_size")
    if tp is None:
        return Verdict(state="skipped", reason="the degree of tensor parallelism is not known")
    if tp == 1:
        return Verdict(state="not_applicable", reason="there is no tensor parallelism")
    known, on = case.setting(_KNOB)
    if not known:
        return Verdict(state="skipped", reason=f"{_KNOB} is not known")
    evidence = [Evidence(label="tensor-parallel ranks", value=str(tp))]
    if on is True:
        return Verdict(state="passes", evidence=evidence)
    saved = _saved_bytes(case, tp)
    if saved is not None:
        label = "activations that could be divided, per layer and micro-batch"
        evidence.append(Evidence(label=label, value=f"{saved / 2**20:,.4g} MiB"))
    return Verdict(
        state="fires",
        level="information",
        reason="norms and dropouts are computed and kept on every rank",
        evidence=evidence,
        advice=[
            Advice(
                knob=_KNOB,
                to=True,
                why=f"keeps 1/{tp} of those activations on each GPU; a guide claims 10 to 15 % of time "
                "besides",
                costs="the sequence must divide by TP",
            )
        ],
        verify="Run again: TP all-reduces become gathers and scatters, and the peak of memory falls.",
        false_alarm="A framework that shards these activations by a setting of its own.",
    )


def _saved_bytes(case: Case, tp: int) -> float | None:
    """Korthikanti et al. (2205.05198): without it 10 x s x b x h bytes of a layer stay whole on each rank."""
    length, hidden = sequence_length(case), hidden_size(case)
    each, cp = case.number("micro_batch_size"), case.degree("context_parallel_size")
    if length is None or hidden is None or each is None or not cp:
        return None
    return 10 * length * each * hidden / cp * (1 - 1 / tp)
