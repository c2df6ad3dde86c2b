"""What is kept of one run: how the steps that count are chosen, and what they cost together.

A median is blind to what fewer than half of the steps do. The mean is what training costs, but one stall (a
file system that hung once) moves it for ever: the few steps that are many times as long as the others are
left out of it, and counted, and the mean with them is kept beside it.

In a job of several ranks each figure of the cost is that of the rank where it is largest. The mean of one
rank over steps is time that passed; a mean over steps of the slowest rank of each step would count a late
step twice, on the rank that was late and on those that began the next step late.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.figures import MIN_WARMUP_STEPS, warmup_steps
from perfdoc.analyzers.steps.log import MAX_STEP_NS
from perfdoc.traces.table import Bool

MIN_STEADY_STEPS = 5
"""Fewer steps after the warm-up have no median worth comparing."""


LOGGED = {"data": "waiting for data (step log)", "garbage": "garbage collection (step log)"}
"""Parts of a step that the step log holds, by their names in `logged_ns`, in words."""

StepNs = Annotated[int, msgspec.Meta(gt=0, le=MAX_STEP_NS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One run, as a baseline keeps it. Unknown is null."""

    source: str
    """Name of the run directory or of the log, without its folder."""
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    """Of all its step numbers and times, and of `utc`: a copy under another name is the same run."""
    utc: str | None = None
    """When it began."""
    commit: str | None = None
    median_step_ns: StepNs
    """Of the steady, unprofiled steps."""
    mad_step_ns: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP_NS)]
    """Median absolute deviation of the same."""
    mean_step_ns: StepNs
    """Of the same but for stalls, on the rank where it is longest, as the figures up to late_ratio are (see
    cost_of)."""
    whole_mean_step_ns: StepNs
    """With the stalls."""
    left_out_steps: Count = 0
    """Stalls: steps that the mean leaves out."""
    left_out_ns: Count = 0
    """What they took together."""
    p95_step_ns: StepNs | None = None
    """Null where the steps are too few."""
    p99_step_ns: StepNs | None = None
    late_ratio: Annotated[float, msgspec.Meta(gt=0, le=1e15)] | None = None
    """Mean of the last third of the steps by that of the first."""
    steps: Count
    """How many they are; lines of a log that stand for several steps count once."""
    warmup_steps: Count
    """First steps that were left out, by the rule of `warmup_steps` in perfdoc.analyzers.steps."""
    mfu_frac: Share | None = None
    tokens_per_s_per_gpu: Rate | None = None
    tflops_per_gpu: Rate | None = None
    """As the trainer of a log counts them."""
    peak_memory_bytes: Count | None = None
    """Most that PyTorch reserved on any GPU; on a CPU the most that any rank had resident."""
    exposed_comm_frac: Share | None = None
    """Of the profiled steps, mean over ranks."""
    parts_ns: dict[str, Count] = {}
    """Where a step goes, mean over ranks: leaves of the ledger of the profiled steps."""
    logged_ns: dict[str, Count] = {}
    """Medians of the parts of a step that the log of the same steps holds (LOGGED), on the worst rank."""
    logged_mean_ns: dict[str, Count] = {}
    """Means of the same parts over the steps that `mean_step_ns` is of."""

    @property
    def logged_parts_ns(self) -> dict[str, int]:
        """`logged_ns` by the words for its names."""
        return {LOGGED.get(name, name): ns for name, ns in self.logged_ns.items()}

    @property
    def logged_mean_parts_ns(self) -> dict[str, int]:
        """`logged_mean_ns` by the words for its names."""
        return {f"{LOGGED.get(name, name)}, mean": ns for name, ns in self.logged_mean_ns.items()}

    def is_same_run(self, other: RunFigures) -> bool:
        """Whether both are figures of one run: of equal step times, or of one directory before and after
        it went on."""
        return self.digest == other.digest or (
            self.utc is not None and (self.source, self.utc) == (other.source, other.utc)
        )


def digest_of(steps: Sequence[int], times_ns: Sequence[int], utc: str | None) -> str:
    """Sixteen hexadecimal digits that stand for a run: its step numbers, their times, and when it began.

    >>> digest_of([1, 2], [10, 11], None) == digest_of([1, 2], [10, 12], None)
    False
    """
    content = hashlib.sha256(f"{utc}\n{len(steps)}\n".encode())
    content.update(np.asarray(steps, "<i8").tobytes())
    content.update(np.asarray(times_ns, "<i8").tobytes())
    return content.hexdigest()[:16]


def twice(runs: Sequence[RunFigures]) -> tuple[RunFigures, RunFigures] | None:
    """The first two of the runs that are one run, if any are."""
    by_digest: dict[str, RunFigures] = {}
    by_name: dict[tuple[str, str], RunFigures] = {}
    for run in runs:
        earlier = by_digest.get(run.digest)
        if earlier is None and run.utc is not None:
            earlier = by_name.get((run.source, run.utc))
        if earlier is not None:
            return earlier, run
        by_digest[run.digest] = run
        if run.utc is not None:
            by_name[run.source, run.utc] = run
    return None


class TooFewStepsError(ValueError):
    """A run without enough steps."""


def steady(times_ns: Sequence[int] | I64) -> dict[str, Any]:
    """The fields of RunFigures that follow from the unprofiled step times, in their order.

    Raises TooFewStepsError where the warm-up cannot be told, or little is left after it.

    >>> steady([90, 40] + [10] * 8)["median_step_ns"]
    10
    """
    times = np.asarray(times_ns, np.int64)
    warmup = warmup_steps(times)
    if warmup is None or len(times) - warmup < MIN_STEADY_STEPS:
        need = max(MIN_WARMUP_STEPS, MIN_STEADY_STEPS + (warmup or 0))
        raise TooFewStepsError(f"{len(times)} unprofiled steps; {need} are the least")
    counted = times[warmup:]
    median = float(np.median(counted))
    return {
        "median_step_ns": round(median),
        "mad_step_ns": round(float(np.median(np.abs(counted - median)))),
        "steps": len(counted),
        "warmup_steps": warmup,
    }


STALL_TIMES = 10
"""A step that takes this many medians is a stall: the steps before and after say nothing of it."""
MOST_STALLS_FRAC = 0.01
"""Where more steps than this (and more than one) stall, stalls are how this run is: none is left out."""
MIN_P95_STEPS = 20
MIN_P99_STEPS = 100
"""Of fewer steps a percentile is the slowest one."""
MIN_THIRD = 4
"""Steps in a third of a run; fewer say nothing of a change within it."""


def cost_of(ranks_ns: I64) -> dict[str, Any]:
    """The fields of RunFigures that follow from the steady steps: a row a rank, a column a step, in order.

    Worked, of one rank: 9 steps of 10, one of 30 and one of 500, which is 50 medians and one of eleven: the
    mean is (9 * 10 + 30) / 10 = 12, with it 620 / 11 = 56.

    >>> found = cost_of(np.array([[10] * 9 + [30, 500]]))
    >>> found["mean_step_ns"], found["whole_mean_step_ns"], found["left_out_steps"], found["left_out_ns"]
    (12, 56, 1, 500)
    """
    stalled = np.array([_stalled(row) for row in ranks_ns])
    means = [float(row[~out].mean()) for row, out in zip(ranks_ns, stalled, strict=True)]
    worst = int(np.argmax(means))
    count = ranks_ns.shape[1]
    p95, p99 = np.percentile(ranks_ns, (95, 99), axis=1).max(axis=1).tolist()
    return {
        "mean_step_ns": round(means[worst]),
        "whole_mean_step_ns": round(float(ranks_ns.mean(axis=1).max())),
        "left_out_steps": int(stalled[worst].sum()),
        "left_out_ns": int(ranks_ns[worst][stalled[worst]].sum()),
        "p95_step_ns": round(p95) if count >= MIN_P95_STEPS else None,
        "p99_step_ns": round(p99) if count >= MIN_P99_STEPS else None,
        "late_ratio": _late_ratio(ranks_ns, stalled),
    }


def kept(times_ns: I64) -> Bool:
    """Which steps of one rank count in its mean: all but the stalls."""
    return ~_stalled(times_ns)


def _stalled(times_ns: I64) -> Bool:
    found: Bool = times_ns > STALL_TIMES * np.median(times_ns)
    most = max(math.floor(MOST_STALLS_FRAC * len(times_ns)), 1)
    return found if found.sum() <= most else np.zeros(len(times_ns), bool)


def _late_ratio(ranks_ns: I64, stalled: Bool) -> float | None:
    """Mean of the last third of the steps by that of the first, without stalls; None of a short run."""
    third = ranks_ns.shape[1] // 3
    if third < MIN_THIRD:
        return None
    found = []
    for row, out in zip(ranks_ns, stalled, strict=True):
        first, last = row[:third][~out[:third]], row[-third:][~out[-third:]]
        found.append(float(last.mean() / first.mean()))
    return max(found)
