"""Blocks of the wrong size cannot be given out again: the job runs out of memory, or is sharded further, with
gigabytes unused."""

from dataclasses import replace

from perfdoc.results.figures import gib, per_cent
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.needs import GPUS, Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes, skips
from perfdoc.rules.facts.failed_request import BY_HAND
from perfdoc.rules.facts.memory_room import SNAPSHOT, is_short, shares_of_reserved, worst_share


def _no_segments(case: Case) -> Missing | None:
    shown = shares_of_reserved(case, "inactive_split")
    return None if shown else skipped("no snapshot shows its segments at the peak")


META = Meta(
    title="Fragmented GPU memory",
    action="Stop memory fragmentation",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="memory",
    needs=(GPUS, SNAPSHOT, Need(words="segments at the peak", missing=_no_segments)),
    advice=("mem_expandable",),
    for_servers=True,
)

MIN_FRAC = 0.1
"""Of what is reserved at the peak: pieces of split segments that are not in use."""
_KNOB, _OPTION = "pytorch_cuda_alloc_conf", "expandable_segments"
_GRAPHS = "it needs NCCL_GRAPH_REGISTER=0"


def evaluate(case: Case) -> Verdict:
    """Fires where unused pieces of split segments are `MIN_FRAC` of what is reserved at the peak."""
    worst, room = worst_share(shares_of_reserved(case, "inactive_split"), MIN_FRAC)
    device = room.device
    evidence = [
        ("unused pieces of split segments, of reserved at the peak", per_cent(worst)),
        ("reserved at the peak", gib(given(given(device.layout).reserved_bytes))),
    ]
    if worst < MIN_FRAC:
        return passes(evidence)
    if device.expandable_segments:
        return passes(evidence, "segments are expandable already; the pieces come from blocks that live long")
    free = room.free_bytes
    if room.failed:
        evidence.append(("allocations that failed", str(room.failed)))
    elif not is_short(room) and free is None:
        reason = "the device's memory is not known, nor did an allocation fail: whether it is short, is open"
        return skips(reason)
    elif not is_short(room) and free is not None:
        evidence.append(("never reserved", gib(free)))
        return passes(evidence, "the device has free memory: fragmentation costs nothing")
    return fires(
        reason="the allocator holds much that it cannot give out, and memory is short",
        evidence=evidence,
        remedy="" if case.setting(_KNOB)[0] else BY_HAND,
        advice=_advice(case),
        otherwise=BY_HAND,
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
