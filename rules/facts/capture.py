"""What a capture may not show (kernels inside CUDA graphs, steady steps), and what it costs the host."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import is_masked_softmax
from perfdoc.analyzers.kernels.parts import NamedTime
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.ranking import AS_SLOW
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
    """Whether a capture says that several processes use one GPU."""
    return any(note.code == "shared-gpu" for capture in case.captures for note in capture.notes)


IN_TURNS = 1.5
"""Devices of one process that run something at a time, in the mean: more, and they do not take turns."""


def in_turns(case: Case) -> float:
    """How many of several devices of one process run something at a time, where they seem to take turns, what
    they wait for having been launched; 0 where that is not seen."""
    longest = max((rank.ledger.total for rank in case.ranks), default=0)
    processes = {(c.path, rank.device.process) for c in case.captures for rank in c.ranks}
    known = all(c.capabilities["launch_correlation"].available for c in case.captures)
    if len(case.ranks) < 2 or len(processes) > 1 or not known or not longest:
        return 0.0
    busy = sum(rank.ledger.total - rank.ledger.idle.total for rank in case.ranks) / longest
    return busy if busy <= IN_TURNS else 0.0


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
