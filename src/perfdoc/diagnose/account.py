"""Where all of the time went, in sentences: the account that stands behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfdoc.analyzers.skew.stragglers import FEWEST
from perfdoc.diagnose.once import made_of, once_words, pause_in, start_up_inside
from perfdoc.results import IDLE_CAUSES, KernelsAnalysis, Rank
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.figures import brief, per_cent, plural, share, shares
from perfdoc.results.host import allocates
from perfdoc.results.names import opening, shorten
from perfdoc.results.quality import Contradiction, in_words
from perfdoc.results.waits import (
    LATE_WORDS,
    LateRank,
    PipelineAnalysis,
    SkewAnalysis,
    may_be_data,
    waits_by_schedule,
)
from perfdoc.rules.facts.loading import REQUESTS

LAUNCH_BOUND, PAUSES, WAITS = "launch-bound", "the host pauses", "the host waits"
_WORDS = {
    "host": LAUNCH_BOUND,
    "python": "Python between operators",
    "gc": "garbage collection",
    "data": "data-loader stall",
    "dependency": "stream dependency",
    "launch_latency": "launch latency",
    "unexplained": "cause unknown",
}

_WORTH_A_CAUSE = 0.001
"""Of the window: of less idle time, which is printed as <0.1 %, no cause is named."""
_WORTH_A_DOUBT = 0.01
"""The same where most of it has no known cause."""
_WORTH_NAMING = 0.1
"""Of idle time: the next cause after one that is not known. Of exposed communication: the bubble."""
_MUCH_UNKNOWN = 0.10
"""Of kernel time: with more of unknown class, the share of compute is in doubt."""


def contradicted_words(found: Sequence[Contradiction]) -> str:
    """A sentence behind the verdict where the settings are not those of the captures."""
    if not found:
        return ""
    return f" The settings given are not this run's: {in_words(found[:2])}{' …' if len(found) > 2 else ''}."


def account_of(
    ranks: Sequence[Rank],
    kernels: KernelsAnalysis | None = None,
    failed_allocations: int = 0,
    *,
    slowed_by: Sequence[str] = (),
    skew: SkewAnalysis | None = None,
    pipeline: PipelineAnalysis | None = None,
    stages: int | None = None,
    awaits: str = "",
) -> str:
    """Summed over all ranks' windows; the largest loss is named first.

    A window of which nothing can be promised, since it is start-up or one pause, says that before all. If
    CUDA graphs were traced as a whole, or much kernel time is of unknown class, another sentence says what
    may be hidden. A job that runs out of memory is told so, whatever its time goes into.
    slowed_by: what of the captures slows their hosts. skew: who waits for whom. pipeline: its bubble is no
    communication, however exposed. stages: of it; None unknown.
    awaits: for what a host that waits likely does so; empty where nothing tells.
    """
    where = f"{once_words(ranks)}{_where_it_went(ranks, pipeline, awaits=awaits)}{_left_out(ranks)}"
    where += f"{waiting_words(ranks, skew, stages)}{slowed_words(ranks, slowed_by)}{_hidden_in_graphs(ranks)}"
    return f"{where}{unknown_class_words(ranks, kernels)}{out_of_memory_words(failed_allocations)}"


def out_of_memory_words(failed: int) -> str:
    """With the space before it; nothing where no allocation failed."""
    return f" {plural(failed, 'allocation')} failed: out of GPU memory." if failed else ""


def _where_it_went(
    ranks: Sequence[Rank], pipeline: PipelineAnalysis | None = None, *, awaits: str = ""
) -> str:
    window = sum(r.window.duration_ns for r in ranks)
    if not window:
        return "The window is empty: nothing ran in it."
    if missing := next((r.events.work_missing for r in ranks if r.events.work_missing), ""):
        return f"{opening(missing)} in it. How long the GPU was idle is not known."
    idle = {c: sum(getattr(r.ledger_ns.idle, c) for r in ranks) for c in IDLE_CAUSES}
    on_host = all(r.gpu.name == "CPU" for r in ranks)
    times = {
        "compute": sum(r.ledger_ns.compute for r in ranks),
        "exposed communication": sum(r.ledger_ns.exposed_comm.total for r in ranks),
        "exposed copies": sum(r.ledger_ns.exposed_memcpy for r in ranks),
        "idle": sum(idle.values()),
    }
    told = dict(zip(times, shares(list(times.values())), strict=True))
    device = "CPU rank" if on_host else "GPU"
    what = device if len(ranks) == 1 else f"{len(ranks)} {device}s"
    verb = "computes" if len(ranks) == 1 else "compute"
    scope = "steps" if all(r.window.kind == "steps" for r in ranks) else "window"
    compute = told.pop("compute")
    losses = sorted((name for name in told if times[name]), key=lambda name: -times[name])
    if not losses:
        return f"The {what} {verb} for all of the {scope}."
    why = f" ({_why_idle(idle, ranks, on_host=on_host, awaits=awaits)})"
    first = max(idle, key=lambda c: idle[c])
    worth = _WORTH_A_CAUSE if first != "unexplained" else _WORTH_A_DOUBT
    names = {"idle": f"idle{why if times['idle'] >= worth * window else ''}"}
    bubble = 0 if pipeline is None else exposed_bubble_ns(pipeline, ranks)
    if bubble > _WORTH_NAMING * times["exposed communication"]:
        names["exposed communication"] = f"exposed communication ({share(bubble / window)} pipeline bubble)"
    parts = ", ".join(f"{told[name]} {names.get(name, name)}" for name in losses)
    return f"The {what} {verb} for {compute} of the {scope}; {parts}."


def _left_out(ranks: Sequence[Rank]) -> str:
    """With the space before it: start-up and cold steps that are no part of the window; nothing without."""
    found = [s for r in ranks if (s := r.window.start_up) is not None and s.left_out]
    if not found:
        return ""
    start_up = max(found, key=lambda s: s.duration_ns)
    computes = f"the GPU computes for {share(start_up.compute_ns / start_up.duration_ns)} of it"
    what = f"{brief(start_up.duration_ns)}{made_of(start_up)}"
    if start_up.steps:
        first = "first step" if start_up.steps == 1 else f"first {start_up.steps} steps"
        return f" Warm-up before it, the {first} of {what}, is left out: {computes}."
    return f" Start-up before it, {what}, is left out: {computes}."


def _why_idle(idle: Mapping[str, int], ranks: Sequence[Rank], *, on_host: bool, awaits: str) -> str:
    """The largest cause that is known, and how much has none."""
    if once := _why_once(ranks):
        return once
    total = sum(idle.values())
    first, second, *_ = sorted(idle, key=lambda c: -idle[c])
    if first != "unexplained":
        most = "" if 2 * idle[first] >= total else "largest cause: "
        return f"{most}{_cause(first, ranks, on_host=on_host, awaits=awaits)}"
    unknown = f"{share(idle[first] / total)} of it {_WORDS[first]}"
    cause = _cause(second, ranks, on_host=on_host, awaits=awaits)
    also = f", {share(idle[second] / total)} {cause}" if idle[second] >= _WORTH_NAMING * total else ""
    return f"{unknown}{also}"


def _why_once(ranks: Sequence[Rank]) -> str:
    """Why idle time that is no habit of the job came about."""
    if start_up_inside(ranks) is not None:
        return "start-up"
    return "mostly one pause" if pause_in(ranks) is not None else ""


def _cause(cause: str, ranks: Sequence[Rank], *, on_host: bool, awaits: str) -> str:
    """The cause in words, no surer than its evidence."""
    if cause == "host":
        return host_cause(ranks, on_host=on_host, awaits=awaits)
    return f"likely {_WORDS['data']}" if cause == "data" and data_is_likely(ranks) else _WORDS[cause]


def data_is_likely(ranks: Sequence[Rank]) -> bool:
    """Whether most stalls for data are known by their position alone: no range, no thread."""
    by_position = sum(r.host.data.idle_position_ns or 0 for r in ranks)
    return 2 * by_position > sum(r.ledger_ns.idle.data for r in ranks)


def host_cause(ranks: Sequence[Rank], *, on_host: bool, awaits: str) -> str:
    """Why the host is late, in words."""
    if on_host:
        return _WORDS["python"]
    host_ns = sum(r.ledger_ns.idle.host for r in ranks)
    if (memory := allocates([r.host for r in ranks], host_ns))[0]:
        return f"the host allocates or frees {''.join(memory)}"
    waiting, between, pausing = (
        sum(getattr(r.host.idle_split, part) or 0 for r in ranks)
        for part in ("waiting_ns", "between_steps_ns", "pausing_ns")
    )
    likely = awaits and f", likely for {awaits}"
    if 2 * waiting >= host_ns:
        return f"{WAITS}{likely}"
    if 2 * (waiting + between + pausing) >= host_ns:
        works = between >= pausing and awaits != REQUESTS
        return "the host works between steps" if works else f"{PAUSES}{likely}"
    return LAUNCH_BOUND


_WORTH_SAYING = 0.05
"""Of the window, launch-bound or exposed: of less nothing more is said."""


def slowed_words(ranks: Sequence[Rank], by: Sequence[str]) -> str:
    """With the space before it; where the host is late and the capture makes it slower."""
    window = sum(r.window.duration_ns for r in ranks)
    host = sum(r.ledger_ns.idle.host - (r.host.idle_split.allocation_ns or 0) for r in ranks)
    if not by or not window or host < _WORTH_SAYING * window:
        return ""
    return f" The capture itself slows the host: it records {', '.join(by)}."


def waiting_words(ranks: Sequence[Rank], skew: SkewAnalysis | None, stages: int | None) -> str:
    """With the space before it; where communication is exposed and mostly waits for a late rank. Messages
    between the stages of a pipeline, and groups that may span them, wait by its schedule: for no late rank.
    They are communication all the same, as is what was not matched: the share is of all."""
    window = sum(r.window.duration_ns for r in ranks)
    exposed = sum(
        ns
        for r in ranks
        for dimension, ns in r.ledger_ns.exposed_comm.by_name.items()
        if not waits_by_schedule(dimension, stages)
    )
    waits = [] if skew is None else [w for w in skew.waits if not waits_by_schedule(w.dimension, stages)]
    if skew is None or not waits or exposed < _WORTH_SAYING * window:
        return ""
    if any(r.window.runs_once for r in ranks):
        return ""  # ranks start one after another
    # The table's rows are unions, the waits are not: where collectives overlap these may be longer.
    matched = sum(w.own_ns for w in skew.waits)
    whole = max(sum(row.total_ns for r in ranks for row in r.communication), matched, 1)
    waited = sum(w.wait_ns for w in waits) / whole
    if waited < _MOSTLY:
        return ""
    said = f" {share(waited)} of communication time is waiting for late ranks"
    late = skew.latest
    if late is None or late.cause == "waiting":  # that one only passes the delay on
        return f"{said}."
    if late.cause == "before" and all(r.window.steps == 1 for r in ranks):
        return (
            f"{said}, most of it for {shorten(late.name, 48)}, whose step {_does(late)}: one step cannot "
            "tell a straggler from a late start. Capture several steps."
        )
    if skew.distinguishable < FEWEST:
        return f"{said}."
    named = [late, *(other for other in skew.also_late if other.cause != "waiting")][:_MOST_NAMED]
    parts = [f"{per_cent(one.wait_frac, 0)} of it for {shorten(one.name, 48)}" for one in named]
    data = " These steps cannot tell that from uneven data: capture more." if may_be_data(late) else ""
    if len({one.cause for one in named}) > 1 or len(named) == 1:
        parts = [part + _which(_does(one)) for part, one in zip(parts, named, strict=True)]
        return f"{said}, {' and '.join(parts)}.{data}"
    return f"{said}, {' and '.join(parts)}{_which(_does(late), each=True)}.{data}"


_MOST_NAMED = 3
"""Late ranks, in one sentence."""


def _does(late: LateRank) -> str:
    """What it does that others do not; empty where that is not known."""
    if late.cause == "before":
        return f"begins {brief(late.cause_ns or 0)} after the others"
    return "" if late.cause == "other" else LATE_WORDS[late.cause]


def _which(does: str, *, each: bool = False) -> str:
    return does and f", {'each of which' if each else 'which'} {does}"


_MOSTLY = 0.5
"""Of the time in communication."""


def graphs_frac(ranks: Sequence[Rank]) -> float:
    """Of kernel time: in graphs whose kernels were not seen. Of a rank without graphs: its compute."""
    graphs = [r.host.graphs for r in ranks if r.host.graphs.whole_graphs]
    kernel_ns = sum(r.host.graphs.kernel_ns or r.ledger_ns.compute for r in ranks)
    return sum(g.graph_ns or 0 for g in graphs) / kernel_ns if graphs and kernel_ns else 0.0


def _hidden_in_graphs(ranks: Sequence[Rank]) -> str:
    """With the space before it; nothing where the kernels of graphs were seen."""
    inside = graphs_frac(ranks)
    if not inside:
        return ""
    return (
        f" {share(inside)} of kernel time is CUDA graphs traced as a whole: communication and idle time "
        "inside them are not visible and count as compute."
    )


def mostly_words(kernels: KernelsAnalysis) -> str:
    """`, 74.2 % of it GEMM` of compute kernels' time; empty where the largest class is unknown."""
    compute = [c for c in kernels.classes if c.name != "communication" and c.total_ns > 0]
    most = max(compute, key=lambda c: c.total_ns, default=None)
    if most is None or most.name == "other":
        return ""
    name = {"gemm": "GEMM", "elementwise": "element-wise"}.get(most.name, most.name.replace("_", " "))
    return f", {share(most.total_ns / sum(c.total_ns for c in compute))} of it {name}"


def unknown_class_words(ranks: Sequence[Rank], kernels: KernelsAnalysis | None) -> str:
    """With the space before it; nothing where nearly all kernels are of a known class."""
    unknown = None if kernels is None else kernels.other_frac
    if unknown is None or unknown <= _MUCH_UNKNOWN:
        return ""
    window = sum(r.window.duration_ns for r in ranks)
    suspected = sum(r.suspected.total_ns for r in ranks if r.suspected is not None)
    said = f" {share(unknown)} of kernel time is of unknown class and counts as compute"
    if not suspected and len(ranks) == 1 and not ranks[0].communication:
        return f"{said}."  # nobody to communicate with is in sight
    if not suspected or not window:
        return f"{said}: name what communicates with --comm-kernel."
    of = share(suspected / window)
    return f"{said}; kernels that look like communication run for {of} of the time: see PD903, --comm-kernel."
