"""A window in its parts: start-up and cold steps, which run once, are left out where most work follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.cold_steps import cold_steps, may_be_cold
from perfdoc.analyzers.device.launches import Launches
from perfdoc.analyzers.device.proposed_ranges import proposed_ranges
from perfdoc.analyzers.device.start_up_calls import Calls, StartUpCalls, find_calls
from perfdoc.analyzers.device.window import StepRanges, runs_once
from perfdoc.analyzers.kernel_class.classify import KernelClass, KernelKinds
from perfdoc.results.capture_parts import Pause, Period, StartUp
from perfdoc.results.figures import plural
from perfdoc.results.ranks import Window
from perfdoc.traces import Trace

MIN_KERNELS = 20
"""Of a period: a shorter one is part of a layer."""
MIN_REPEATS = 3
MAX_OTHER_FRAC = 0.02
"""Of a period's kernels: so many may differ from one repetition to the next (tokens routed elsewhere, another
algorithm)."""
MIN_COVERED_FRAC = 0.8
"""Of the kernels after start-up."""
_MIN_AGREEMENT = 0.5
"""Correlation at a distance that is worth a look."""
_CANDIDATES = 16
_MAX_KERNELS = 1_000_000
"""Looked at, from the start: a few tenths of a second."""


def find_period(trace: Trace, activity: Activity, kinds: KernelKinds, from_ns: int) -> Period | None:
    """The period of what a device computes from a time on; None where nothing repeats.

    from_ns: the end of start-up, or the start of the capture.
    """
    rows = activity.kernel_rows[~activity.kernel_is_comm]
    rows = rows[trace.kernels.start_ns[rows] >= from_ns]
    if len(rows) < MIN_REPEATS * MIN_KERNELS:
        return None
    stream, count = np.unique(trace.kernels.stream[rows], return_counts=True)
    rows = rows[trace.kernels.stream[rows] == stream[count.argmax()]]
    rows = rows[np.argsort(trace.kernels.start_ns[rows], kind="stable")][:_MAX_KERNELS]
    columns = (trace.kernels.full_name, trace.kernels.grid_blocks, trace.kernels.block_threads)
    _, code = row_keys(*(column[rows].astype(np.int64) for column in columns))
    found = repetition(code)
    if found is None:
        return None
    first, length, repeats = found
    start, end = trace.kernels.start_ns[rows], trace.kernels.end_ns[rows]
    last = first + length * repeats
    of_class = kinds.class_code[rows[first : first + length]]
    return Period(
        kernels=length,
        repeats=repeats,
        start_ns=int(start[first]),
        end_ns=int(start[last]) if last < len(start) else int(end[first:].max()),
        optimizer=bool((of_class == KernelClass.OPTIMIZER).any()),
    )


def repetition(code: I64) -> tuple[int, int, int] | None:
    """First element, length and whole repetitions of what repeats over at least `MIN_COVERED_FRAC` of a
    sequence; the shortest length where several do.

    >>> repetition(np.tile(np.arange(30), 4))
    (0, 30, 4)
    """
    for length in _lengths(code):
        first, end = _stretch(code, length)
        repeats = (end - first) // length
        if repeats >= MIN_REPEATS and end - first >= MIN_COVERED_FRAC * len(code):
            return first, length, repeats
    return None


def _lengths(code: I64) -> list[int]:
    """Distances at which most of a sequence agrees with itself, the best of them: its autocorrelation, each
    kind of element as 1 or -1 by chance."""
    most = len(code) // MIN_REPEATS
    if most < MIN_KERNELS:
        return []
    sign = np.random.default_rng(0).choice((-1.0, 1.0), int(code.max()) + 1)[code]
    sign -= sign.mean()
    spectrum = np.fft.rfft(sign, 2 * len(sign))
    agree = np.fft.irfft(spectrum * spectrum.conj())[: most + 1]
    agree = agree / (np.arange(len(code), len(code) - most - 1, -1) * max(sign.var(), 1e-9))
    agree[:MIN_KERNELS] = 0.0
    if agree.max() < _MIN_AGREEMENT:
        return []
    return [int(n) for n in np.flatnonzero(agree >= agree.max() - MAX_OTHER_FRAC)[:_CANDIDATES]]


def _stretch(code: I64, length: int) -> tuple[int, int]:
    """The longest stretch in which every `length` elements are followed by nearly the same ones."""
    differs = np.concatenate(([0], np.cumsum(code[:-length] != code[length:])))
    good = differs[length:] - differs[:-length] <= MAX_OTHER_FRAC * length
    edges = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    begin, end = edges[::2], edges[1::2]
    longest = int((end - begin).argmax())
    return int(begin[longest]), int(end[longest]) - 1 + 2 * length


_ENDS_AT_FRAC = 0.95
"""Of the time in such calls."""
_MIN_FRAC = 0.05
"""Of the window: a shorter start-up changes no figure."""
_MIN_CALLS_FRAC = 0.01
"""Of the start-up of a capture, spent in such calls: less does not tell what the time was."""
_MIN_GIVEN_FRAC = 0.05
"""The same of a window that somebody chose, who may have left start-up out."""
_MIN_FIRST_FRAC = 0.2
"""The same where long first launches alone tell: any call may be held up once."""
_MIN_CALLS = 10
"""Allocations alone are a start-up from here on."""


def find_start_up(
    calls: StartUpCalls, activity: Activity, window_ns: tuple[int, int], *, given: bool = False
) -> StartUp | None:
    """The start-up at the beginning of a window of one device; None where the capture shows none.

    calls: of the whole capture. given: whether somebody chose the window.
    """
    begin, end = window_ns
    # What comes before the first activity of the capture led to it.
    since = int(np.iinfo(np.int64).min) if begin <= activity.span[0] else begin
    calls = calls.within(since, end)
    told = len(calls.loads) or len(calls.communicators) or len(calls.allocations) >= _MIN_CALLS
    if not told and not len(calls.first_launches):
        return None
    last = max(_end(list(vars(calls).values())), _end([calls.loads, calls.allocations, calls.communicators]))
    if last - begin < _MIN_FRAC * (end - begin):
        return None
    spent = [of.covered.clip(begin, last) for of in vars(calls).values()]
    all_of_it = spent[0] | spent[1] | spent[2] | spent[3]
    least = (_MIN_GIVEN_FRAC if given else _MIN_CALLS_FRAC) if told else _MIN_FIRST_FRAC
    if all_of_it.total_ns < least * (last - begin):
        return None
    return start_up_of(calls, activity, (begin, last), window_ns)


def _end(calls: Sequence[Calls]) -> int:
    """When most of the time in these calls has passed; 0 without any."""
    start, end = (np.concatenate([getattr(of, side) for of in calls]) for side in ("start_ns", "end_ns"))
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    # Fractions: calls and ranges together may last longer than an integer holds.
    passed = np.cumsum((end - start)[order], dtype=np.float64)
    return int(end[order][np.searchsorted(passed, _ENDS_AT_FRAC * passed[-1], "left")])


def start_up_of(
    calls: StartUpCalls,
    activity: Activity,
    stretch_ns: tuple[int, int],
    window_ns: tuple[int, int],
    *,
    steps: int = 0,
) -> StartUp:
    """What is published of a start-up. calls: those of its time. steps: cold ones that it is made of."""
    begin, last = stretch_ns
    inside = _inside(activity, window_ns)

    def spent_ns(*of: Calls) -> int:
        covered = EMPTY
        for one in of:
            covered = covered | one.covered
        return covered.clip(begin, last).total_ns

    return StartUp(
        start_ns=begin,
        end_ns=last,
        compute_ns=activity.compute.clip(begin, last).total_ns,
        loading_ns=spent_ns(calls.loads, calls.first_launches),
        allocation_ns=spent_ns(calls.allocations),
        communicator_ns=spent_ns(calls.communicators),
        work_frac=float(np.searchsorted(inside, last, "left") / max(1, len(inside))),
        left_out=False,
        steps=steps,
    )


def _inside(activity: Activity, window_ns: tuple[int, int]) -> I64:
    start = activity.start_ns
    inside: I64 = start[(start >= window_ns[0]) & (start < window_ns[1])]
    return inside


MIN_WINDOW_FRAC = 0.2
MIN_IDLE_FRAC = 0.5
"""Of the idle time: so much of it in one stretch is no habit of the host."""
ALONE = 2
"""Times the next longest: of two that are about as long one comes back."""


def find_pause(activity: Activity, start_ns: int, end_ns: int) -> Pause | None:
    """The one long pause of a device in [start, end); None where idle time comes in more than one piece."""
    gaps = activity.busy.gaps(start_ns, end_ns)
    if not len(gaps):
        return None
    length = gaps.end_ns - gaps.start_ns
    longest = int(length.argmax())
    least = max(MIN_WINDOW_FRAC * (end_ns - start_ns), MIN_IDLE_FRAC * int(length.sum()))
    others = np.delete(length, longest)
    if length[longest] < least or ALONE * others.max(initial=0) > length[longest]:
        return None
    start, end = int(gaps.start_ns[longest]), int(gaps.end_ns[longest])
    before = int(np.count_nonzero((activity.start_ns >= start_ns) & (activity.start_ns < start)))
    after = int(np.count_nonzero((activity.start_ns >= end) & (activity.start_ns < end_ns)))
    return Pause(start_ns=start, end_ns=end, before=before, after=after)


MAX_START_UP_WORK_FRAC = 0.5
"""Of what runs on the device: with more of it in start-up, what is left is hardly the job."""

MAX_TAIL_FRAC = 0.05
"""Of what runs after start-up: with no more of it before a long pause, that pause ends start-up."""
MIN_REST_FRAC = 0.05
"""Of the capture: what follows start-up is hardly the job where it is shorter and nothing in it repeats."""


def in_parts(
    trace: Trace,
    activity: Activity,
    kinds: KernelKinds,
    launches: Launches,
    window: Window,
    ranges: StepRanges,
    *,
    chosen: bool,
) -> tuple[Window, StepRanges]:
    """The same window, told in parts; another one where start-up is left out. ranges: its steps on the host.

    The bounds of what the user chose stay as they are.
    """
    if activity.on_host or window.end_ns <= window.start_ns:
        return window, ranges
    if window.steps > 1 and not may_be_cold(window.step_list, ranges):
        return window, ranges
    calls = find_calls(trace, activity, launches)
    if window.steps > 1:
        window, ranges = _without_cold_steps(trace, activity, calls, window, ranges)
    elif window.kind != "capture" or chosen:
        bounds = window.start_ns, window.end_ns
        # A pause in it may be what the user wants to know about.
        window = replace(window, start_up=find_start_up(calls, activity, bounds, given=True))
    else:
        window = _of_capture(trace, activity, kinds, calls, window)
    return replace(window, runs_once=runs_once(window, chosen=chosen)), ranges


def _without_cold_steps(
    trace: Trace, activity: Activity, calls: StartUpCalls, window: Window, ranges: StepRanges
) -> tuple[Window, StepRanges]:
    cold = cold_steps(trace, activity, window.step_list, ranges, calls)
    if not cold:
        return window, ranges
    kept = window.step_list[cold:]
    first_ns, kept_ns = int(ranges.start_ns[0]), int(ranges.start_ns[cold])
    start_up = start_up_of(
        calls.within(first_ns, kept_ns),
        activity,
        (min(first_ns, window.start_ns), kept[0].start_ns),
        (window.start_ns, window.end_ns),
        steps=cold,
    )
    warm = replace(
        _from(window, kept[0].start_ns),
        steps=len(kept),
        step_list=kept,
        start_up=replace(start_up, start_ns=window.start_ns, left_out=True),
        reason=f"{window.reason}; the first {plural(cold, 'step')} left out: warm-up",
    )
    return warm, StepRanges(start_ns=ranges.start_ns[cold:], end_ns=ranges.end_ns[cold:])


def _from(window: Window, start_ns: int) -> Window:
    """The window from a later start on."""
    return replace(window, start_ns=start_ns, duration_ns=window.end_ns - start_ns)


def _of_capture(
    trace: Trace, activity: Activity, kinds: KernelKinds, calls: StartUpCalls, window: Window
) -> Window:
    """Of a window that fell back to the whole capture."""
    found = find_start_up(calls, activity, (window.start_ns, window.end_ns))
    steady_ns = window.start_ns if found is None else found.end_ns
    parts = replace(
        window,
        start_up=found,
        period=find_period(trace, activity, kinds, steady_ns),
        proposals=proposed_ranges(trace, activity, None if found is None else steady_ns),
    )
    if found is None or found.work_frac > MAX_START_UP_WORK_FRAC:
        return _with_pause(activity, parts)
    after = activity.start_ns[activity.start_ns >= found.end_ns]
    start_ns = int(after[0])
    pause = find_pause(activity, start_ns, window.end_ns)
    if pause is not None and pause.before <= MAX_TAIL_FRAC * len(after):
        start_ns = pause.end_ns
    rest = _with_pause(
        activity,
        replace(
            _from(parts, start_ns),
            start_up=replace(found, left_out=True),
            reason=f"{window.reason}; begins after start-up",
        ),
    )
    # A little that tells nothing either does not stand for the capture.
    once = rest.period is None and rest.duration_ns < MIN_REST_FRAC * window.duration_ns
    once |= rest.pause is not None and rest.duration_ns < found.duration_ns
    return parts if once else rest


def _with_pause(activity: Activity, window: Window) -> Window:
    """Start-up that is part of the window says more than a pause in it."""
    if window.start_up is not None and not window.start_up.left_out:
        return window
    return replace(window, pause=find_pause(activity, window.start_ns, window.end_ns))
