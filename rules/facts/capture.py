"""What a capture may not show (kernels inside CUDA graphs, steady steps), and what it costs the host."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals, union
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import is_masked_softmax
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.analyzers.timeline.segments import Segments
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.ranking import AS_SLOW
from perfdoc.results.ranks import LEAVES
from perfdoc.rules.engine.gain import Gain, RankMeasurement
from perfdoc.rules.engine.needs import Missing, Need, applies, capability, skipped
from perfdoc.rules.engine.rule import Case, Evidence

_CLOSE_NS = 20_000
"""Between two launches: as close, the tracing of each call is a share of it that counts."""


SLOWED = ", and the capture itself slows the host"
"""In a reason; a verdict says it in a sentence of its own, with what does."""


def slowed_by(case: Case) -> Sequence[str]:
    """What any capture records that slows its host."""
    return list(dict.fromkeys(words for capture in case.captures for words in capture.slowed_by))


_OPTIONS = ("with_stack", "record_shapes", "profile_memory", "NVTX range for every operator")
"""In what slows the host, those of PyTorch's profiler under their names."""


def left_out(case: Case) -> list[str]:
    """Options of the capture without which it slows the host less."""
    found = " ".join(slowed_by(case))
    return ["emit_nvtx" if " " in option else option for option in _OPTIONS if option in found]


def costly(case: Case) -> str:
    """The same in words; empty where nothing slows the host."""
    return ", ".join(left_out(case)) or ("what the capture records" if slowed_by(case) else "")


def as_slow(case: Case) -> list[str]:
    """What a saving of host time takes where the capture itself slows the host."""
    return [f"{AS_SLOW}{less}"] if (less := costly(case)) else []


def if_as_slow(case: Case, gain: Gain | None) -> Gain | None:
    """The same with that among its assumptions."""
    return gain and replace(gain, assumptions=[*gain.assumptions, *as_slow(case)])


def cost_evidence(case: Case) -> Iterator[Evidence]:
    """What was recorded, how close launches are, and how much it costs where a step log tells."""
    if found := slowed_by(case):
        yield ("the capture itself slows the host: it records", ", ".join(found))
    intervals = [r.host.small_kernels.median_launch_interval_ns for r in case.ranks]
    close = [ns for ns in intervals if ns is not None and ns < _CLOSE_NS]
    if close:
        yield ("each CUDA call is traced, one every", brief(min(close)))
    overhead = case.job.step_times.overhead
    if overhead.frac is not None:
        yield ("profiled steps against the others, by the step log", per_cent(overhead.frac))


def shares_gpu(case: Case) -> bool:
    """Whether other processes of the capture use the GPU that idles longest with nothing that says why."""
    ranks = ((c, r) for c in case.captures for r in c.ranks if r.ledger.total)
    found = max(ranks, key=lambda each: each[1].ledger.idle.unexplained / each[1].ledger.total, default=None)
    if found is None or not (uuid := found[1].device.uuid):
        return False
    return len({rank.device.process for rank in found[0].ranks if rank.device.uuid == uuid}) > 1


_AT_ONCE, _COVERED, _LAUNCHED = 1.1, 0.5, 0.1
"""Of devices that take turns so many work at a time at most; of what each idles others work in more, and for
more what it waits for has been launched."""
TURNS = "the GPUs of one process seem to take turns, and each idles while another works: see PD901"
_APART_FRAC = 0.01
"""Of a step: work that is closer is one, since the picture stacks short stretches."""


def in_turns(case: Case) -> bool:
    """Whether several devices of one process work one at a time, what some wait for having been launched; the
    first one's next turn is launched when the last one's is over."""
    processes = {(c.path, rank.device.process) for c in case.captures for rank in c.ranks}
    known = all(c.capabilities["launch_correlation"].available for c in case.captures)
    if len(case.ranks) < 2 or len(processes) > 1 or not known:
        return False
    offered = [{s.name: s.tracks["ledger"].segments for s in rank.timeline} for rank in case.ranks]
    drawn = next(([steps[n] for steps in offered] for n in offered[0] if all(n in s for s in offered)), None)
    if drawn is None:
        return False
    near_ns = int(_APART_FRAC * max(int(segments.duration_ns.sum()) for segments in drawn))
    busy = [_covered(segments, "", near_ns) for segments in drawn]
    work = reduce(or_, busy)
    # Each device has steps of its own bounds.
    begin = max(int(segments.start_ns[0]) for segments in drawn)
    end = min(int(segments.start_ns[-1] + segments.duration_ns[-1]) for segments in drawn)
    waits = [_covered(x, f"idle.{of}", 0).clip(begin, end) for of in ("host", "unexplained") for x in drawn]
    beside = sum(each.overlap_ns(work) for each in waits) > _COVERED * sum(each.total_ns for each in waits)
    idle = [rank.ledger.idle for rank in case.ranks]
    launched = sum(i.unexplained for i in idle) > _LAUNCHED * sum(i.unexplained + i.host for i in idle)
    return beside and launched and sum(each.total_ns for each in busy) <= _AT_ONCE * work.total_ns


def _covered(segments: Segments, leaf: str, near_ns: int) -> Intervals:
    """The time of a leaf, or without one of all work, and gaps in it up to near_ns."""
    of = [i for i, name in enumerate(LEAVES) if (name == leaf if leaf else not name.startswith("idle."))]
    rows = np.isin(segments.code, of)
    start = segments.start_ns[rows]
    found = union(start, start + segments.duration_ns[rows] + near_ns)
    return Intervals(found.start_ns, found.end_ns - near_ns)


_HIDDEN = (
    "CUDA graphs were traced as a whole, which hides their kernels: nsys --cuda-graph-trace=node shows them"
)


def why_hidden(case: Case) -> str:
    """Why kernels are missing from the capture; empty if none are."""
    return _HIDDEN if any(rank.host.graphs.whole_graphs for rank in case.ranks) else ""


KERNELS = Need(
    words="the kernels inside CUDA graphs, if any",
    missing=lambda case: skipped(hidden) if (hidden := why_hidden(case)) else None,
)


def fused_attention_runs(case: Case) -> bool:
    """Whether any fused attention kernel runs."""
    return any(is_fused_attention(k) for r in case.ranks for k in r.kernel_times)


def is_fused_attention(kernel: NamedTime) -> bool:
    """Whether it is attention in one kernel, or a helper of it: a softmax with its mask is not."""
    return kernel.kernel_class is KernelClass.ATTENTION and not is_masked_softmax(kernel.name)


def kernel_medians(case: Case) -> Iterator[Evidence]:
    """Whether kernels are short beside what their launch takes: medians of the ranks' medians."""
    small = [rank.host.small_kernels for rank in case.ranks]
    for label, each in (
        ("median kernel", [s.median_kernel_ns for s in small]),
        ("median launch interval", [s.median_launch_interval_ns for s in small]),
    ):
        if known := [ns for ns in each if ns is not None]:
            yield label, brief(statistics.median(known))


def why_start_up_counts(case: Case) -> str:
    """Why shares of the window are not shares of training: no steps are known, the window was not given, and
    nothing shows that it is without start-up. Empty if they are."""
    if any(r.window.kind == "capture" and not r.window_chosen and not _repeats(r) for r in case.ranks):
        return "the window is the whole capture, start-up included: steps are not known (see PD902)"
    return ""


def _repeats(rank: RankMeasurement) -> bool:
    """Whether the window begins after start-up, or is one sequence of kernels again and again."""
    start_up, period = rank.window.start_up, rank.window.period
    return start_up.left_out if start_up is not None else period is not None


def _start_up(case: Case) -> Missing | None:
    why = next((r.window.runs_once for r in case.ranks if r.window.runs_once), "")
    return skipped(why) if why else None


AFTER_START_UP = Need(words="a window that is no start-up", missing=_start_up)
LAUNCHES = capability("launch_correlation", "the launch of each kernel")
STEADY = Need(
    words="steps, or a given window",
    missing=lambda case: skipped(why) if (why := why_start_up_counts(case)) else None,
)
OWN_WINDOW = applies(
    "a window chosen by perfdoc",
    lambda case: not any(r.window_chosen for r in case.ranks),
    "the window was given",
)
