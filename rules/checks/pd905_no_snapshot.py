"""Recomputation, offloading and sharding cost time in every step. A memory snapshot shows whether they are
needed, and which tensors fill the GPU."""

from perfdoc.knobs.knob import Value
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import GPUS, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.memory_room import out_of_memory, rooms

_SAVERS = (
    *("recompute_granularity", "cpu_offloading", "fine_grained_activation_offloading"),
    "optimizer_cpu_offload",
)
"""Settings that buy memory with time, where they are neither off nor null."""


def _on(case: Case) -> list[tuple[str, Value]]:
    """Those that are on."""
    known = [(name, *case.setting(name)) for name in _SAVERS]
    on: list[tuple[str, Value]] = [
        (name, value) for name, is_known, value in known if is_known and value not in (None, False)
    ]
    if not on and case.job.facts.recompute not in (None, "none"):
        return [("recompute_granularity", str(case.job.facts.recompute))]
    return on


def _nothing_known(case: Case) -> Missing | None:
    known = rooms(case) or _on(case) or out_of_memory(case)[0] or any(case.setting(k)[0] for k in _SAVERS)
    return None if known else skipped("whether settings save memory is not known")


META = Meta(
    title="Memory-saving settings without a memory snapshot",
    action="Take a memory snapshot",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="profiling",
    needs=(
        GPUS,
        Need(
            words="a memory snapshot, a failed allocation, or a setting that saves memory",
            missing=_nothing_known,
        ),
    ),
    advice=("prof_mem",),
    for_servers=True,
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where such a setting is on, or an allocation failed, and there is no
    snapshot."""
    if rooms(case):
        return passes(reason="a memory snapshot is there")
    on, (failed, _) = _on(case), out_of_memory(case)
    evidence = [(name, str(value)) for name, value in on]
    if failed:
        evidence.append(("allocations that failed", str(failed)))
    if not on and not failed:
        return passes()
    advice = []
    if case.configuration.dialect in ("megatron_bridge", "megatron_lm"):
        why = "the allocator's history shows sizes, lifetimes and stacks at the peak"
        advice.append(
            advise(knob="record_memory_history", to=True, why=why, costs="slower steps while it records")
        )
    return informs(
        reason="a setting trades time for memory, and no snapshot shows how much memory is free",
        evidence=evidence,
        remedy=""
        if advice
        else "Record a few steps: torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE), and "
        "give the file to perfdoc analyze.",
        advice=advice,
        verify="perfdoc analyze with the snapshot decides PD502 to PD509.",
        false_alarm="Memory that was looked at before, with the same settings.",
    )
