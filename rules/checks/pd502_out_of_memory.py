"""PD502: GPUs that run out of memory."""

from __future__ import annotations

from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.memory_relief import pieces, words
from perfdoc.rules.facts.memory_room import out_of_memory, rooms

META = Meta(
    code="PD502",
    title="Out of GPU memory",
    why="An allocation that fails ends the run; one that succeeds only after cached memory was given back "
    "stops the device and the host each time.",
    sources=("seed 000", "seed 001", "seed 003", "seed 004"),
    topic="memory",
    needs=("snapshot",),
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

MIN_RETRIES = 2
"""Allocations that had to give cached memory back first; a single one may be the first step's."""


def evaluate(case: Case) -> Verdict:
    """Fires where an allocation failed, or `MIN_RETRIES` succeeded only after memory had been given back."""
    if case.on_host:
        return Verdict(state="not_applicable", reason="the ranks train on the CPU: there is no GPU memory")
    if case.memory is None or case.memory.state != "measured":
        reason = case.memory.reason if case.memory is not None else "no memory snapshot was given"
        return Verdict(state="skipped", reason=reason)
    failed, retries = out_of_memory(case)
    evidence = [
        Evidence(label="allocations that failed, all ranks", value=str(failed)),
        Evidence(label="allocations that gave cached memory back first, all ranks", value=str(retries)),
    ]
    if not failed and retries < MIN_RETRIES:
        return Verdict(state="passes", evidence=evidence)
    found = rooms(case)
    worst = max(found, key=lambda r: (r.failed, r.forced), default=None)
    asked = worst.device.out_of_memory[0] if worst is not None and worst.device.out_of_memory else None
    if asked is not None:
        where = f"{asked.function} ({asked.file}:{asked.line})" if asked.function else "an unknown place"
        evidence.append(Evidence(label=f"first failed request, in {where}", value=gib(asked.requested_bytes)))
        evidence.append(Evidence(label="the device had free", value=gib(asked.device_free_bytes)))
    if worst is not None and worst.device.composition is not None:
        made_of = sorted(worst.device.composition.category_bytes.items(), key=lambda c: -c[1])
        evidence += [
            Evidence(label=f"{name.replace('_', ' ')}, at the peak", value=gib(size))
            for name, size in made_of[:3]
            if size
        ]
    return Verdict(
        state="fires",
        reason="the GPU's memory does not suffice"
        if failed
        else "allocations succeed only after cached memory has been given back",
        evidence=evidence,
        remedy=words(case, worst),
        advice=pieces(case, worst),
        otherwise="Shard further: more pipeline stages, FSDP, or more GPUs.",
        verify="Record a snapshot again: no allocation fails, and reserved stays below the GPU's memory.",
        false_alarm="Another process on the same GPU; memory in pieces (see PD501 first where it fires).",
    )
