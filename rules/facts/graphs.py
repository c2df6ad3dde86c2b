"""Launch-bound time, and CUDA graphs against it: which parts can be captured, and whether they fit in memory.

Conditions as megatron-core 0.16.1 checks them (TransformerConfig)."""

from collections.abc import Callable, Iterable

from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.results.figures import gib
from perfdoc.results.kernels import PartTime
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import LAUNCHES, Gain, Of, RankMeasurement, ceiling
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.capture import as_slow, if_as_slow
from perfdoc.rules.facts.degrees import experts_of, has_experts, shapes_change
from perfdoc.rules.facts.memory_need import pp_of
from perfdoc.rules.facts.memory_room import tightest
from perfdoc.rules.facts.precision import fp8_on

GRAPH_BYTES = 4 << 30
"""Static buffers of the graphs; a few GB by the guides."""
GRAPH_BYTES_PIPELINE = 10 << 30
"""The same with pipeline stages; more than 10 GB by the guides."""
_WHOLE_LAYER: tuple[str, ...] = ()


def graph_advice(case: Case, gain: Gain | None, part_gain: Gain | None) -> list[Advice]:
    """Capture what has static shapes, if graphs are known to be off and memory is not known to be short.

    gain: of whole layers; part_gain: with experts outside the graph.
    """
    scope = capturable(case)
    if scope is None or not case.is_set_to("cuda_graph_impl", "none") or why_no_room(case):
        return []
    pp = pp_of(case)
    size = "a few GB" if pp == 1 else "more than 10 GB" if pp else "a few GB, more than 10 GB with a pipeline"
    costs = f"{size} of memory for static buffers; shapes must be static"
    whole = scope == _WHOLE_LAYER
    graphs = advise(
        knob="cuda_graph_impl",
        to="local" if whole else "transformer_engine",
        gain=gain if whole else part_gain,
        why="launches a layer's kernels with one call"
        if whole
        else "launches the static-shape parts of a layer with one call; expert GEMMs are not static",
        costs=costs,
    )
    then = []
    if not whole:
        why = "dropless experts have dynamic input shapes and stay outside the graph"
        then.append(advise(knob="cuda_graph_scope", to=scope, why=why))
    why = "graphs replay random numbers from their own state"
    return needing(graphs, then=[*then, advise(knob="use_te_rng_tracker", to=True, why=why)])


def why_no_room(case: Case) -> str:
    """Why graphs do not fit into memory; empty if they do, or if unknown."""
    room = tightest(case)
    if room is None or room.spare_bytes is None:
        return ""
    need = GRAPH_BYTES if pp_of(case) == 1 else GRAPH_BYTES_PIPELINE
    if room.spare_bytes >= need:
        return ""
    return f"CUDA graphs need about {gib(need)}; {gib(room.spare_bytes)} are available."


def why_no_graphs(case: Case) -> str:
    """Why whole layers cannot be put into graphs here; empty where they can, or it is not known."""
    if room := why_no_room(case):
        return room
    known, now = case.setting("cuda_graph_impl")
    if known and now != "none":
        return "set already: cuda_graph_impl"
    if any(mostly_graphs(rank) for rank in case.ranks):
        return "done already: CUDA graphs launch most of the work"
    if shapes_change(case):
        return "shapes change from step to step, and a graph has one"
    if case.is_set_to("recompute_granularity", "full"):
        return "megatron-core refuses full recomputation inside a graph"
    return "experts have dynamic input shapes and stay outside the graphs" if static_scope(case) else ""


def open_conditions(case: Case, key: str) -> list[str]:
    """What a simulated change takes that this job is not known to meet; empty where it is, or takes nothing.

    key: of the prediction. Graphs have such conditions, waits for values that are read, and what saves host
    time that the capture itself may have made longer.
    """
    if key == "without_waits" and any(_reads(rank) for rank in case.ranks):
        return ["the host can do without the values that it reads there"]
    if key == "fused_optimizer":
        return as_slow(case)
    if key != "without_launches":
        return []
    found = []
    if not case.is_set_to("cuda_graph_impl", "none") and not seen_without(case):
        found.append("it is not done already")
    if capturable(case) != _WHOLE_LAYER:
        found.append("shapes are static")
    found += as_slow(case)
    if any(_stalls(rank) for rank in case.ranks):
        found.append("no call waits or allocates")
    return found


def seen_without(case: Case) -> bool:
    """Whether the captures show that no graph launched anything."""
    seen = [rank.host.graphs for rank in case.ranks]
    return bool(seen) and all(
        g.state == "measured" and not g.graph_kernels and not g.whole_graphs for g in seen
    )


def _reads(rank: RankMeasurement) -> bool:
    """Whether more than one value a step is copied to the host: a program may need it to go on."""
    read = sum(copies.count for copies in rank.copies if copies.kind == "device to host")
    return read > max(rank.window.steps, 1)


_MOSTLY = 0.5
"""Of kernel time."""


def mostly_graphs(rank: RankMeasurement) -> bool:
    """Whether CUDA graphs launch most of a rank's work."""
    graphs = rank.host.graphs
    return graphs.state == "measured" and (graphs.graph_ns or 0) > _MOSTLY * (graphs.kernel_ns or 0)


def _stalls(rank: RankMeasurement) -> bool:
    """More than one call a step waits for the device or allocates: a captured layer may not."""
    calls = (rank.host.sync_calls.count or 0) + (rank.host.alloc_calls.count or 0)
    return calls > max(rank.window.steps, 1)


def capturable(case: Case) -> tuple[str, ...] | None:
    """The scope that can be captured: () for whole layers; None if none is known to be.

    Shapes must be static (those of verl's batches and of unpacked samples are not), nothing may be
    recomputed (megatron-core refuses full recomputation, and selective with dropout, inside a graph), and
    expert inputs must have one shape.
    """
    if shapes_change(case):
        return None
    if not case.is_set_to("recompute_granularity", None):
        return None
    return static_scope(case)


def static_scope(case: Case) -> tuple[str, ...] | None:
    """The scope with static shapes, apart from the data; None if experts or their capacity are unknown."""
    if has_experts(case) is False:
        return _WHOLE_LAYER
    if experts_of(case) is None:
        return None
    known, capacity = case.setting("moe_expert_capacity_factor")
    if not known:
        return None
    if capacity is not None and case.is_set_to("moe_pad_expert_input_to_capacity", True):
        return _WHOLE_LAYER
    router: tuple[str, ...] = ("attn", "moe_router")
    # Token preprocessing synchronises with the device if tokens are dropped, or padded for FP8.
    syncs = capacity is not None or fp8_on(case) is not False
    return router if syncs else (*router, "moe_preprocess")


def launched_late_ns(rank: RankMeasurement) -> int:
    """All idle time that launching may have caused: what it delays may show behind a collection or a wait for
    data, before work that is queued, and beside communication that compute would hide. Pauses in steps may be
    Python of the model, which a graph of it leaves out."""
    ledger, late_ns = rank.ledger, launching_ns(rank) + pausing_ns(rank)
    behind_ns = ledger.idle.gc + ledger.idle.data + ledger.idle.launch_latency + ledger.idle.dependency
    return late_ns + behind_ns + min(late_ns, ledger.exposed_comm.total)


def without_kernels(case: Case, of: Of, apart: Of, what: str) -> Gain | None:
    """An upper bound of kernels that go with their launches. of: their time; apart: their apart_ns."""

    def late_ns(rank: RankMeasurement) -> int:
        return min(apart(rank), launched_late_ns(rank))

    if not any(map(late_ns, case.ranks)):
        return ceiling(case, of, what)
    bound = ceiling(case, of, what + LAUNCHES, launches=late_ns)
    return if_as_slow(case, bound) if sum(map(late_ns, case.ranks)) > sum(map(of, case.ranks)) else bound


def of_kernels(rows: Callable[[RankMeasurement], Iterable[NamedTime | PartTime]]) -> tuple[Of, Of]:
    """(their time, no more than the device is busy; their apart_ns) of some of a rank's kernels."""

    def time_ns(rank: RankMeasurement) -> int:
        busy_ns = rank.ledger.compute + rank.ledger.exposed_comm.total
        return min(sum(row.total_ns for row in rows(rank)), busy_ns)

    return time_ns, lambda rank: sum(row.apart_ns for row in rows(rank))


def of_names(which: Callable[[NamedTime], object]) -> tuple[Of, Of]:
    """The same of kernels of some names."""
    return of_kernels(lambda rank: filter(which, rank.kernel_times))


def of_parts(which: Callable[[PartTime], object]) -> tuple[Of, Of]:
    """The same of some parts of the model."""
    return of_kernels(lambda rank: filter(which, rank.kernel_parts.parts))


MIN_HOST_FRAC = 0.05
"""Launch-bound: idle time of the window, mean over ranks; or the predicted gain of the step, other ranks'
waits included."""
MIN_GC_FRAC = 0.01
"""Garbage collection: the same."""


def waiting_ns(rank: RankMeasurement) -> int:
    """idle.host in which the launching thread waited for something other than the device; 0 where unknown."""
    return rank.host.idle_split.waiting_ns or 0


def between_steps_ns(rank: RankMeasurement) -> int:
    """idle.host in long pauses between steps without a CUDA call, waiting left out; 0 where unknown."""
    return rank.host.idle_split.between_steps_ns or 0


def pausing_ns(rank: RankMeasurement) -> int:
    """idle.host in long stretches without a CUDA call inside steps; 0 where unknown."""
    return rank.host.idle_split.pausing_ns or 0


def warming_ns(rank: RankMeasurement) -> int:
    """idle.host in calls that allocate in few of the steps; no other step has it."""
    return 0 if rank.host.alloc_calls.recurring else rank.host.idle_split.allocation_ns or 0


def launching_ns(rank: RankMeasurement) -> int:
    """idle.host less all four: what fewer or faster launches can act on."""
    parts = (waiting_ns, between_steps_ns, pausing_ns, warming_ns)
    return max(rank.ledger.idle.host - sum(part(rank) for part in parts), 0)
