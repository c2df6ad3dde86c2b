"""PD312: optimizer states that every replica keeps whole."""

from __future__ import annotations

from perfdoc.analyzers.memory.formula import Degrees, states_bytes
from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.degrees import CP, degrees_of, uses_fsdp

META = Meta(
    code="PD312",
    title="Optimizer states on every replica",
    why="Masters and moments take 12 of 18 bytes a parameter; the distributed optimizer keeps each of them "
    "once, over data- and context-parallel ranks, for no more traffic. The memory can go into less "
    "splitting, less recomputation or larger micro-batches.",
    sources=("seed 000", "seed 001", "seed 002", "seed 003"),
    topic="parallel_mapping",
    needs=("settings",),
    advice=("pm_distopt", "mem_distopt_od", "pm_cp_shards_optimizer", "moe_dp_replaces_cp"),
)

_KNOB = "use_distributed_optimizer"


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where there are several replicas and the distributed optimizer is known to be
    off."""
    dp, cp = case.dp, case.degree(CP) or case.job.facts.cp
    if dp is None or cp is None:
        return Verdict(state="skipped", reason="the data- and context-parallel degrees are not known")
    if dp * cp == 1 or uses_fsdp(case):
        reason = "there is one replica" if dp * cp == 1 else "FSDP shards the optimizer itself"
        return Verdict(state="not_applicable", reason=reason)
    known, value = case.setting(_KNOB)
    if not known or not isinstance(value, bool):
        return Verdict(state="skipped", reason=f"{_KNOB} is not known")
    now = degrees_of(case)
    saved = None if now is None or value else _saved_bytes(case, now)
    evidence = [Evidence(label="replicas, context-parallel ranks included", value=str(dp * cp))]
    if value:
        return Verdict(state="passes", evidence=evidence)
    if saved is not None:
        evidence.append(Evidence(label="memory of a GPU that it frees, by formula", value=gib(saved, ".3g")))
    why = f"keeps each optimizer state on one of {dp * cp} ranks"
    return Verdict(
        state="fires",
        level="information",
        reason=f"{dp * cp} copies of the optimizer states are kept",
        evidence=evidence,
        advice=[advise(knob=_KNOB, to=True, why=why, costs="checkpoints of another layout")],
        otherwise="Shard the optimizer states by the means of the framework (ZeRO-1).",
        verify="Run again with a memory snapshot: the optimizer's part of the peak falls.",
        false_alarm="An optimizer without a distributed form, or states so small that nothing is won.",
    )


def _saved_bytes(case: Case, now: Degrees) -> int | None:
    shape = case.job.facts.model
    if shape is None or not shape.layers:
        return None
    whole = states_bytes(shape, now, sharded_optimizer=False)
    shards = states_bytes(shape, now, sharded_optimizer=True)
    return None if whole is None or shards is None else whole - shards
