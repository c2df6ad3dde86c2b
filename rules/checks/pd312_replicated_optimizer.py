"""Master weights and moments take 12 of 18 bytes per parameter; the distributed optimizer shards them over
data- and context-parallel ranks, with no more communication. The memory allows less model parallelism, less
recomputation or larger micro-batches."""

from perfdoc.analyzers.memory.formula import Degrees, states_bytes
from perfdoc.results.figures import gib
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import Missing, Need, given, known, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.degrees import degrees_of, uses_fsdp
from perfdoc.rules.facts.memory_need import cp_of

_KNOB = "use_distributed_optimizer"


def _sharded(case: Case) -> bool | None:
    value = case.setting(_KNOB)[1]
    return value if isinstance(value, bool) else None


def _one_copy(case: Case) -> Missing | None:
    if case.dp == cp_of(case) == 1:
        return not_applicable("there is one replica")
    return not_applicable("FSDP shards the optimizer itself") if uses_fsdp(case) else None


META = Meta(
    title="Replicated optimizer states",
    action="Shard the optimizer states",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "Megatron-LM guide"),
    topic="parallel_mapping",
    needs=(
        known(
            "the data- and context-parallel degrees",
            lambda case: case.dp,
            cp_of,
            reason="the data- and context-parallel degrees are not known",
        ),
        Need(words="several replicas, not FSDP", missing=_one_copy),
        known("`use_distributed_optimizer`", _sharded, reason=f"{_KNOB} is not known"),
    ),
    advice=(
        "pm_distopt",
        "mem_distopt_od",
        "pm_cp_shards_optimizer",
        "moe_dp_replaces_cp",
        "mlm_quick_scale",
    ),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if there are several replicas and the distributed optimizer is known to be
    off."""
    dp, cp, value = given(case.dp), given(cp_of(case)), given(_sharded(case))
    now = degrees_of(case)
    saved = None if now is None or value else _saved_bytes(case, now)
    evidence = [("replicas, context-parallel ranks included", str(dp * cp))]
    if value:
        return passes(evidence)
    if saved is not None:
        evidence.append(("memory freed per GPU, by formula", gib(saved, 3)))
    why = f"shards the optimizer states over {dp * cp} ranks"
    return informs(
        reason=f"{dp * cp} copies of the optimizer states",
        evidence=evidence,
        advice=[advise(knob=_KNOB, to=True, why=why, costs="another checkpoint layout")],
        otherwise="Shard the optimizer states with the framework's own method (ZeRO-1).",
        verify="Run again with a memory snapshot: optimizer state at the peak falls.",
        false_alarm="An optimizer without a distributed version, or negligibly small states.",
    )


def _saved_bytes(case: Case, now: Degrees) -> int | None:
    shape = case.job.facts.model
    if shape is None or not shape.layers:
        return None
    whole = states_bytes(shape, now, sharded_optimizer=False)
    shards = states_bytes(shape, now, sharded_optimizer=True)
    return None if whole is None or shards is None else whole - shards
