"""PD312: optimizer states that every replica keeps whole."""

from __future__ import annotations

from perfdoc.analyzers.memory.formula import Degrees, states_bytes
from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, given, known, not_applicable
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.degrees import CP, degrees_of, uses_fsdp

_KNOB = "use_distributed_optimizer"


def _cp(case: Case) -> int | None:
    return case.degree(CP) or case.job.facts.cp


def _sharded(case: Case) -> bool | None:
    value = case.setting(_KNOB)[1]
    return value if isinstance(value, bool) else None


def _one_copy(case: Case) -> Missing | None:
    if case.dp == _cp(case) == 1:
        return not_applicable("there is one replica")
    return not_applicable("FSDP shards the optimizer itself") if uses_fsdp(case) else None


META = Meta(
    code="PD312",
    title="Optimizer states on every replica",
    why="Masters and moments take 12 of 18 bytes a parameter; the distributed optimizer keeps each of them "
    "once, over data- and context-parallel ranks, for no more traffic. The memory can go into less "
    "splitting, less recomputation or larger micro-batches.",
    sources=("seed 000", "seed 001", "seed 002", "seed 003"),
    topic="parallel_mapping",
    needs=(
        known(
            "the data- and context-parallel degrees",
            lambda case: case.dp,
            _cp,
            reason="the data- and context-parallel degrees are not known",
        ),
        Need(words="several replicas, not FSDP", missing=_one_copy),
        known("`use_distributed_optimizer`", _sharded, reason=f"{_KNOB} is not known"),
    ),
    advice=("pm_distopt", "mem_distopt_od", "pm_cp_shards_optimizer", "moe_dp_replaces_cp"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where there are several replicas and the distributed optimizer is known to be
    off."""
    dp, cp, value = given(case.dp), given(_cp(case)), given(_sharded(case))
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
