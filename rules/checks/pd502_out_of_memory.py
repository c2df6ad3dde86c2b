"""An allocation that fails ends the run; one that succeeds only after cached memory was given back stops the
device and the host each time."""

from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.memory_relief import pieces, words
from perfdoc.rules.facts.memory_room import NEEDS, shortage

META = Meta(
    title="Out of GPU memory",
    action="Save GPU memory",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="memory",
    needs=NEEDS,
    advice=(
        "mlm_ts_oom",
        "mlm_quick_mem",
        "mem_full_recompute",
        "mem_uniform_1",
        "mem_fine_grained_recompute",
        "mem_offload",
        "ls_recompute_offload",
        "fsdp_activation_bottleneck",
    ),
)


def evaluate(case: Case) -> Verdict:
    """Fires where an allocation failed, or `memory_room.MIN_RETRIES` succeeded only after memory had been
    given back."""
    found = shortage(case)
    if not found.is_one:
        return passes(found.evidence)
    return fires(
        reason=found.reason,
        evidence=found.evidence,
        remedy=words(case, found.worst),
        advice=pieces(case, found.worst),
        otherwise="Shard further: more pipeline stages, FSDP, or more GPUs.",
        verify="Record a snapshot again: no allocation fails, and reserved stays below the GPU's memory.",
        false_alarm="Another process on the same GPU; fragmentation (see PD501 first where it fires).",
    )
