"""PD501: memory that the allocator holds and cannot use."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results.figures import gib, per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise, needing
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPUS, Missing, Need, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.memory_room import SNAPSHOT, Room, is_short, rooms


def _shares(case: Case) -> list[tuple[float, Room]]:
    """Unused pieces of split segments, of what is reserved at the peak, with their device."""
    return [
        (device.layout.inactive_split_bytes / device.layout.reserved_bytes, room)
        for room in rooms(case)
        if (device := room.device).layout is not None
        and device.layout.reserved_bytes
        and device.layout.inactive_split_bytes is not None
    ]


def _no_segments(case: Case) -> Missing | None:
    return None if _shares(case) else skipped("no snapshot shows its segments at the peak")


META = Meta(
    code="PD501",
    title="Fragmented GPU memory",
    action="Stop memory fragmentation",
    why="Blocks of the wrong size cannot be given out again: the job runs out of memory, or is sharded "
    "further, "
    "with gigabytes unused.",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    needs=(GPUS, SNAPSHOT, Need(words="segments at the peak", missing=_no_segments)),
    advice=("mem_expandable",),
)

MIN_FRAC = 0.10
"""Of what is reserved at the peak: pieces of split segments that are not in use."""
_KNOB, _OPTION = "pytorch_cuda_alloc_conf", "expandable_segments"
_GRAPHS = "it needs NCCL_GRAPH_REGISTER=0"
_BY_HAND = f"Add {_OPTION}:True to PYTORCH_CUDA_ALLOC_CONF, after a comma if other options are set."


def evaluate(case: Case) -> Verdict:
    """Fires where unused pieces of split segments are `MIN_FRAC` of what is reserved at the peak."""
    # One device may have many pieces and memory to spare, and another be short.
    worst, room = max(_shares(case), key=lambda s: (s[0] >= MIN_FRAC and is_short(s[1]), s[0]))
    device = room.device
    assert device.layout is not None
    assert device.layout.reserved_bytes is not None
    evidence = [
        Evidence(label="unused pieces of split segments, of reserved at the peak", value=per_cent(worst)),
        Evidence(label="reserved at the peak", value=gib(device.layout.reserved_bytes)),
    ]
    if worst < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if device.expandable_segments:
        reason = "segments are expandable already; the pieces come from blocks that live long"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    free = room.free_bytes
    if room.failed:
        evidence.append(Evidence(label="allocations that failed", value=str(room.failed)))
    elif not is_short(room) and free is None:
        reason = "the device's memory is not known, nor did an allocation fail: whether it is short, is open"
        return Verdict(state="skipped", reason=reason)
    elif not is_short(room) and free is not None:
        evidence.append(Evidence(label="never reserved", value=gib(free)))
        reason = "the device has free memory: fragmentation costs nothing"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        reason="the allocator holds much that it cannot give out, and memory is short",
        evidence=evidence,
        remedy="" if case.setting(_KNOB)[0] else _BY_HAND,
        advice=_advice(case),
        otherwise=_BY_HAND,
        verify="Record a snapshot again: reserved comes closer to allocated.",
        false_alarm="Free memory: fragmentation costs nothing until the device is full.",
    )


def _advice(case: Case) -> list[Advice]:
    """The option beside those that are set; nothing where these are not known, which it would overwrite."""
    known, now = case.setting(_KNOB)
    if not known:
        return []
    others = [
        option.strip()
        for option in str(now or "").split(",")
        if option.strip() and option.partition(":")[0].strip() != _OPTION
    ]
    grow = advise(
        knob=_KNOB,
        to=",".join([*others, f"{_OPTION}:True"]),
        why="segments grow in place instead of being split",
        costs="not beside NCCL's user buffers (nccl_ub)",
    )
    known, graphs = case.setting("cuda_graph_impl")
    if known and graphs in (None, "none"):
        return [grow]
    why = "CUDA graphs that register buffers with NCCL refuse such segments"
    register = advise(knob="nccl_graph_register", to=0, why=why)
    return (
        needing(grow, then=[register])
        if known
        else [replace(grow, costs=f"{grow.costs}; with CUDA graphs {_GRAPHS}")]
    )
