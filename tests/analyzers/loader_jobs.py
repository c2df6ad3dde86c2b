"""Planted jobs whose device waits where steps meet, or elsewhere, with what the system saw of the thread."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.simulator.captures.process import ProcessBuilder, ThreadBuilder
from perfdoc.simulator.captures.timeline import TimelineBuilder
from tests.analyzers.tiny import GEMM

MS = 1_000_000
STEPS = 6
WORK_MS, STALL_MS = 20, 80
"""A step is 20 ms of kernels of 1 ms back to back, launched one by one, then 80 ms of nothing."""
Between = Callable[[ThreadBuilder, int, int, int], None]
"""What the host does in a pause: thread, index of the step before it, start, end."""


def silent(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
    """Nothing that a capture shows."""


def job(
    between: Between = silent,
    *,
    steps: int = STEPS,
    step_name: str = "step",
    stall_ms: int = STALL_MS,
    stalled: Callable[[int], bool] = lambda step: True,
    before: Callable[[ProcessBuilder, ThreadBuilder], None] | None = None,
    in_range: bool = False,
) -> TimelineBuilder:
    """Steps whose kernels run as they are launched; after each (but the last) a pause of the host.

    A kernel that starts at t is launched by a call in [t - 10 us, t). The pause of step i is [end of its last
    kernel, first call of step i + 1): 80 ms less 10 us of host time. stalled: which steps are followed by one;
    the others by 100 us. in_range: the pause lies inside the next step's range, at its start.
    """
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    if before is not None:
        before(process, main)
    at, begin = MS, MS - 10_000
    for step in range(steps):
        for i in range(WORK_MS):
            start = at + i * MS
            device.kernel(GEMM, start, start + MS, launch=(main, start - 10_000, start))
        done = at + WORK_MS * MS
        following = done + (stall_ms * MS if stalled(step) else 100_000)
        main.range(f"{step_name} {step}", begin, done if in_range else done - MS + 1_000)
        if step < steps - 1:
            between(main, step, done - MS, following - 10_000)
        at, begin = following, (done if in_range else following - 10_000)
    return builder


def off(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
    """The thread is off the CPU until 100 us before the pause ends; it comes on at the job's start."""
    if step == 0:
        thread.off_cpu(0, 1_000)
    thread.off_cpu(start + 50_000, end - 50_000)


def on(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
    """The thread is on the CPU in all of it, but for moments."""
    if step == 0:
        thread.off_cpu(0, 1_000)
    thread.off_cpu(start + 50_000, start + 60_000)
    thread.off_cpu(end - 60_000, end - 50_000)
