"""PD905: settings that pay time for memory, and nobody looked at the memory."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.memory_room import out_of_memory, rooms

META = Meta(
    code="PD905",
    title="Time spent to save memory that was not measured",
    why="Recomputation, offloading and sharding cost time in every step. A memory snapshot shows whether "
    "they are needed, and which tensors fill the GPU.",
    sources=("seed 000", "seed 001"),
    topic="profiling",
    needs=("settings",),
    advice=("prof_mem",),
)

_SAVERS = (
    *("recompute_granularity", "cpu_offloading", "fine_grained_activation_offloading"),
    "optimizer_cpu_offload",
)
"""Settings that buy memory with time, where they are neither off nor null."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where such a setting is on, or an allocation failed, and there is no
    snapshot."""
    if case.on_host:
        return Verdict(state="not_applicable", reason="the ranks train on the CPU: there is no GPU memory")
    if rooms(case):
        return Verdict(state="passes", reason="a memory snapshot is there")
    known = [(name, *case.setting(name)) for name in _SAVERS]
    on = [(name, value) for name, is_known, value in known if is_known and value not in (None, False)]
    if not on and case.job.facts.recompute not in (None, "none"):
        on = [("recompute_granularity", str(case.job.facts.recompute))]
    failed, _ = out_of_memory(case)
    evidence = [Evidence(label=name, value=str(value)) for name, value in on]
    if failed:
        evidence.append(Evidence(label="allocations that failed", value=str(failed)))
    if not on and not failed:
        if not any(is_known for _, is_known, _ in known):
            return Verdict(state="skipped", reason="whether settings save memory is not known")
        return Verdict(state="passes")
    advice = []
    if case.configuration.dialect in ("megatron_bridge", "megatron_lm"):
        why = "the allocator's history shows sizes, lifetimes and stacks at the peak"
        advice.append(
            advise(knob="record_memory_history", to=True, why=why, costs="slower steps while it records")
        )
    return Verdict(
        state="fires",
        level="information",
        reason="memory is saved at the price of time, and no snapshot shows how much there is",
        evidence=evidence,
        remedy=""
        if advice
        else "Record a few steps: torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE), and "
        "give the file to perfdoc analyze.",
        advice=advice,
        verify="perfdoc analyze with the snapshot decides PD502 to PD509.",
        false_alarm="Memory that was looked at before, with the same settings.",
    )
