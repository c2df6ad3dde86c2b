"""What the host did in every step: how long it worked, waited, collected garbage and loaded data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.device.range_names import rows_on
from perfdoc.analyzers.device.view import DeviceView, launches_missing
from perfdoc.analyzers.host.calls import CallKind, HostCalls, host_bounds, step_at
from perfdoc.analyzers.host.idle import HostIdle
from perfdoc.profiling import vocabulary
from perfdoc.records import dataclass
from perfdoc.results.host import DataPauses, HostPauses
from perfdoc.results.quality import MEASURED, Measured

_HOW = {
    "gc": (
        "No range in the capture names a garbage collection.",
        "Put a range named `gc` around collections (gc.callbacks sees each of them); `perfdoc run` does.",
    ),
    "data": (
        "No range in the capture names data loading, and no pauses between steps look like it.",
        "Put a range named `data_loading` around the call that fetches a batch, or name the one that is "
        "there with --data-range; PyTorch's DataLoader has its own in PyTorch traces.",
    ),
}


def gc_pauses(view: DeviceView, idle: HostIdle) -> HostPauses:
    """Garbage collections of the device's process, on any thread: each holds the interpreter's lock."""
    mine = view.trace.threads_of(view.device.process)
    found = _pauses(view, view.known.gc, mine, EMPTY, idle.gc_ns)
    return HostPauses.missing(*_HOW["gc"]) if found is None else found


def data_pauses(view: DeviceView, idle: HostIdle) -> DataPauses:
    """Waits for the next batch on the threads that launch the device's work, inferred ones included."""
    stalled = view.idle_inputs.stalls.stalled
    found = _pauses(view, view.known.data, view.activity.launching_threads, stalled, idle.data_ns)
    if found is None:
        return DataPauses.missing(*_HOW["data"])
    return DataPauses(
        **{f.name: getattr(found, f.name) for f in fields(HostPauses)},
        idle_range_ns=idle.data_ns - idle.stalled_thread_ns - idle.stalled_position_ns,
        idle_thread_ns=idle.stalled_thread_ns,
        idle_position_ns=idle.stalled_position_ns,
    )


def _pauses(
    view: DeviceView, rows: I64, threads: I64, inferred: Intervals, idle_ns: int
) -> HostPauses | None:
    """Named pauses (rows of Trace.ranges) and inferred ones; None where the capture would show neither."""
    ranges = view.trace.ranges
    rows = rows_on(view.trace, rows, threads)
    low, high = host_bounds(view)
    inferred = inferred.clip(low, high)
    # perfdoc's trainer marks every pause of both kinds.
    by_perfdoc = bool(view.window.steps) and view.window.step_list[0].name.startswith(vocabulary.STEP)
    if not len(rows) and not len(inferred) and not by_perfdoc:
        return None
    covered = union(ranges.start_ns[rows], ranges.end_ns[rows]).clip(low, high) | inferred
    rows = rows[(ranges.start_ns[rows] < high) & (ranges.end_ns[rows] > low)]
    rows = _outermost(ranges.start_ns, ranges.end_ns, rows)
    steps = np.append(step_at(view, ranges.start_ns[rows]), _held_up(view, inferred))
    found = HostPauses(
        **MEASURED,
        count=len(rows) + len(inferred),
        total_ns=covered.total_ns,
        idle_ns=idle_ns,
        steps_with=len(set(steps[steps >= 0].tolist())) if view.window.steps else None,
        worst_ns=0,
        worst_name=None,
        worst_step=None,
    )
    if not len(steps):
        return found
    start = np.append(ranges.start_ns[rows], inferred.start_ns)
    end = np.append(ranges.end_ns[rows], inferred.end_ns)
    length = np.minimum(end, high) - np.maximum(start, low)
    worst = int(np.argmax(length))
    step = int(steps[worst])
    return replace(
        found,
        worst_ns=int(length[worst]),
        worst_name=view.trace.strings[ranges.name[rows[worst]]] if worst < len(rows) else None,
        worst_step=view.window.step_list[step].name if step >= 0 else None,
    )


def _held_up(view: DeviceView, pauses: Intervals) -> I64:
    """Index of the step before whose work each pause between steps ended."""
    ends = view.step_ranges.end_ns
    at: I64 = np.searchsorted(ends, pauses.end_ns, "left")
    return np.where(at < len(ends), at, -1)


def _outermost(start_ns: I64, end_ns: I64, rows: I64) -> I64:
    """Sorted by start, without those inside another one."""
    if not len(rows):
        return rows
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    reach = np.maximum.accumulate(end_ns[rows])
    return np.asarray(rows[np.append(True, end_ns[rows][1:] > reach[:-1])])


MAX_STEPS = 1_000
"""Steps that are kept; the first ones."""


@dataclass(frozen=True, kw_only=True)
class HostStep:
    """One step range on the host of one rank."""

    name: str
    host_ns: int
    """Length of the range less the waits in it: for the device (synchronising calls), or on a CPU rank for
    communication."""
    waiting_ns: int
    gc_ns: int | None
    """None where the capture would not show a collection."""


@dataclass(frozen=True, kw_only=True)
class HostSteps(Measured):
    """The steps of one rank's window on its host, in order."""

    steps: Sequence[HostStep] = ()
    dry_ns: int = 0
    """In all, how long the device would lack compute while its host works, did it never wait for others."""


def host_steps(view: DeviceView, calls: HostCalls | None, *, gc_known: bool) -> HostSteps:
    """Sum up the host's steps of one rank. calls: None where the capture has none."""
    if not view.window.steps:
        return HostSteps.missing(
            f"The window is not made of steps ({view.window.reason}).",
            "Mark steps with ranges, or name them with --step-range.",
        )
    missing = None if view.activity.on_host else launches_missing(view)
    if missing is not None or (calls is None and not view.activity.on_host):
        return HostSteps.missing(*(missing or ("The capture has no CUDA API calls.", "")))
    kept = view.window.step_list[:MAX_STEPS]
    start, end = view.step_ranges.start_ns[:MAX_STEPS], view.step_ranges.end_ns[:MAX_STEPS]
    waits = _waits(view, calls)
    waiting = waits.covered_within(start, end)
    gc_ns = view.idle_inputs.gc.covered_within(start, end)
    columns = (c.tolist() for c in (end - start - waiting, waiting, gc_ns))
    return HostSteps(
        **MEASURED,
        steps=[
            HostStep(name=s.name, host_ns=h, waiting_ns=w, gc_ns=g if gc_known else None)
            for s, h, w, g in zip(kept, *columns, strict=True)
        ],
        dry_ns=_dry_ns(view, union(start, end) - waits),
    )


def _dry_ns(view: DeviceView, works: Intervals) -> int:
    """works: the host's stretches between waits; each begins with a device that has nothing to do."""
    ran = view.activity
    rows = np.flatnonzero(ran.is_compute & (ran.launch_start_ns >= 0))
    reach = np.maximum.accumulate(ran.end_ns[rows])
    own = np.maximum(ran.end_ns[rows] - np.maximum(ran.start_ns[rows], np.append(0, reach)[:-1]), 0)
    order = np.argsort(ran.launch_start_ns[rows], kind="stable")
    launched, given = ran.launch_start_ns[rows][order], np.append(0, np.cumsum(own[order]))
    # Driest right before a launch, or at the end of a stretch.
    first, last = (np.searchsorted(launched, at, "left") for at in (works.start_ns, works.end_ns))
    most, dry = works.end_ns - given[last], np.append(launched - given[:-1], 0)
    with_launches = np.flatnonzero(last > first)
    stretches = np.column_stack((first, last))[with_launches].ravel()
    most[with_launches] = np.maximum(most[with_launches], np.maximum.reduceat(dry, stretches)[::2])
    return int((most - works.start_ns + given[first]).sum())


def _waits(view: DeviceView, calls: HostCalls | None) -> Intervals:
    if calls is None:
        return view.activity.comm - view.activity.compute
    rows: I64 = calls.outermost(CallKind.SYNCHRONISING)
    return union(calls.start_ns[rows], calls.end_ns[rows])
