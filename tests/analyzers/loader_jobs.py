"""Planted jobs whose device waits where steps meet, or elsewhere, with what the system saw of the thread."""

from __future__ import annotations

from collections.abc import Callable

from tests.analyzers.tiny import GEMM
from tests.captures.process import ProcessBuilder, ThreadBuilder
from tests.captures.timeline import TimelineBuilder

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
    inside: bool = False,
    at_end: bool = False,
) -> TimelineBuilder:
    """Steps whose kernels run as they are launched; after each (but the last) a pause of the host.

    A kernel that starts at t is launched by a call in [t - 10 us, t). The pause of step i is [end of its last
    kernel, first call of step i + 1): 80 ms less 10 us of host time. stalled: which steps are
    followed by one; the others by 100 us. in_range: the pause lies in the next step's range, at its start.
    inside: each step has its pause in the middle of its work, and none after it. at_end: the pause lies in
    the range of the step before it.
    """
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    if before is not None:
        before(process, main)
    at, begin = MS, MS - 10_000
    for step in range(steps):
        pause = stall_ms * MS if inside else 0
        for i in range(WORK_MS):
            start = at + i * MS + (pause if i >= WORK_MS // 2 else 0)
            device.kernel(GEMM, start, start + MS, launch=(main, start - 10_000, start))
        if inside:
            between(main, step, at + (WORK_MS // 2 - 1) * MS, at + WORK_MS // 2 * MS + pause - 10_000)
        done = at + WORK_MS * MS + pause
        following = done + (stall_ms * MS if stalled(step) and not inside else 100_000)
        end = following - 11_000 if at_end else done if in_range else done - MS + 1_000
        main.range(f"{step_name} {step}", begin, end)
        if step < steps - 1 and not inside:
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


def calling(name: str) -> Between:
    """The thread is in one call of the C library, from 50 us after the pause begins to 50 us before its end;
    nothing says whether it was on the CPU."""

    def between(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        thread.os_call(name, start + 50_000, end - 50_000)

    return between


def both(*parts: Between) -> Between:
    """All of them."""

    def between(thread: ThreadBuilder, step: int, start: int, end: int) -> None:
        for part in parts:
            part(thread, step, start, end)

    return between
