"""One device: every analysis that needs no other rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from perfdoc.analyzers.base.memory import give_back
from perfdoc.analyzers.communication.calls import CollectiveCalls, collective_calls
from perfdoc.analyzers.communication.table import communication_table
from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.analyzers.contention.taken import Taken, taken
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.efficiency.bounds import KernelBounds
from perfdoc.analyzers.efficiency.device import device_efficiency
from perfdoc.analyzers.host.activity import host_activity
from perfdoc.analyzers.host.packing import Packing, packing
from perfdoc.analyzers.host.steps import HostSteps
from perfdoc.analyzers.instances.spots import Instance, device_instances
from perfdoc.analyzers.kernels.attributed import AttributedKernels, attributed_kernels
from perfdoc.analyzers.kernels.parts import NamedTime, kernel_parts, kernel_times, kernels_only
from perfdoc.analyzers.kernels.suspects import suspected_communication
from perfdoc.analyzers.layout.job_uses import GroupUse, group_uses
from perfdoc.analyzers.ledger.steps import StepLedgers, build_ledger, step_ledgers
from perfdoc.analyzers.pipeline.operations import RankOperations, rank_operations
from perfdoc.analyzers.pipeline.rank import PipelineRank, pipeline_rank
from perfdoc.analyzers.tables.device import CopyTime, DeviceTables, copy_times, device_tables
from perfdoc.analyzers.timeline.rank import StepTimeline, rank_timeline
from perfdoc.records import dataclass
from perfdoc.results import DeviceContention, HostActivity
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.results.kernels import KernelPartsAnalysis, SuspectedCommunication
from perfdoc.results.memory import DeviceMemory, MemorySeries
from perfdoc.results.quality import EventCounts
from perfdoc.results.ranks import Communication, KernelsOnly, Ledger, Window
from perfdoc.traces import Device
from perfdoc.traces.table import I64, unique

DeviceAnalysis: TypeAlias = Callable[[DeviceView, AttributedKernels | None], Any]
"""An analysis that lives above this room, such as the replay, of a device and its kernels as
attributed_kernels has them; its result must pickle."""


@runtime_checkable
class AsksForBounds(Protocol):
    """A result of such an analysis for which kernels are measured at their bounds too."""

    @property
    def bounds_until_ns(self) -> int | None:
        """Those that start before it; None: of none."""


@dataclass(frozen=True, kw_only=True)
class RankMeasurement:
    """What was measured on one device."""

    device: Device
    events: EventCounts
    window: Window
    window_chosen: bool
    """Whether the user chose it."""
    on_host: bool
    """Whether the rank trains on the CPU."""
    last_left_out: bool = False
    """Whether a step follows its window that is left out for what it lacks."""
    last_may_go: bool = False
    """Whether that is so, or may be for what it lacks on other ranks."""
    hung: tuple[int, int] | None = None
    """Launches in a step behind its window that never closes, and in the one before."""
    span_ns: tuple[int, int]
    """First start and last end of anything on the device, whatever the window."""
    ledger: Ledger
    communication: list[Communication]
    copies: Sequence[CopyTime]
    kernel_times: Sequence[NamedTime]
    kernel_parts: KernelPartsAnalysis
    efficiency: KernelEfficiency
    bounds: KernelBounds | None = None
    """What kernels would take at their bounds; None where that was not asked for, or nothing is known."""
    suspected: SuspectedCommunication
    contention: DeviceContention
    taken: Taken | None = None
    """What it loses to others that have its GPU too; None of nothing, or of less than it loses otherwise."""
    host: HostActivity
    host_steps: HostSteps
    """For comparing ranks."""
    packing: Sequence[Packing] = ()
    step_ledgers: StepLedgers
    calls: CollectiveCalls
    """For comparing ranks."""
    uses: Sequence[GroupUse] = ()
    """What it uses its process groups for."""
    tables: DeviceTables
    pipeline: PipelineRank
    operations: RankOperations
    """For replaying the job."""
    kernels_only_window: KernelsOnly
    kernels_only_capture: KernelsOnly
    timeline: Sequence[StepTimeline]
    """Its typical steps, for the picture of all ranks."""
    instances: Sequence[Instance] = ()
    """The worst of each kind."""
    memory: DeviceMemory | None = None
    """None where the capture shows no allocations."""
    also: Any
    """What the analysis of the room above found; None without one."""

    @property
    def withheld(self) -> str:
        """Why nothing is predicted of it; empty where something may be."""
        return self.events.partial or self.window.runs_once


def measure_device(
    view: DeviceView, also: DeviceAnalysis | None = None, beside: Executor | None = None
) -> RankMeasurement:
    """Every analysis of one device, and one more of a room above.

    beside: a thread for half of it: the host, which takes much memory, and then the replay, which does too.
    """
    trace, activity, window = view.trace, view.activity, view.window
    a, b = window.start_ns, window.end_ns
    ledger_and_host_found = begun(beside, _ledger_and_host, view)
    contention, contended, excess = norm_contention(view)
    kernels = attributed_kernels(view)
    parts = kernel_parts(view, kernels)
    calls = collective_calls(view)
    communication = communication_table(trace, activity, a, b)
    times = kernel_times(trace, activity, view.kinds, a, b)
    only, only_of_capture = kernels_only(trace, activity, (a, b)), kernels_only(trace, activity)
    ledger, (host, steps) = ledger_and_host_found()
    give_back(len(activity.start_ns))
    above_found = begun(beside, also or _nothing, view, kernels)
    tables = device_tables(view, calls)
    suspected, packed = suspected_communication(view), packing(view)
    ledgers, pipeline = step_ledgers(view), pipeline_rank(view)
    timeline = rank_timeline(view)
    instances = device_instances(view, ledger, contended)
    efficiency, at_bounds = device_efficiency(view, kernels, excess, ledger.compute)
    above = above_found()
    until_ns = above.bounds_until_ns if isinstance(above, AsksForBounds) else None
    return RankMeasurement(
        device=view.device,
        events=view.events,
        window=window,
        window_chosen=view.window_chosen,
        on_host=activity.on_host,
        hung=view.step_ranges.hung,
        span_ns=activity.span,
        ledger=ledger,
        communication=communication,
        copies=copy_times(tables.copies),
        kernel_times=times,
        kernel_parts=parts,
        efficiency=efficiency,
        bounds=None if until_ns is None else at_bounds(until_ns),
        suspected=suspected,
        contention=contention,
        taken=taken(view, ledger),
        host=host,
        host_steps=steps,
        packing=packed,
        step_ledgers=ledgers,
        calls=calls,
        uses=group_uses(view, calls),
        tables=tables,
        pipeline=pipeline,
        operations=rank_operations(view, calls),
        kernels_only_window=only,
        kernels_only_capture=only_of_capture,
        timeline=timeline,
        instances=instances,
        memory=captured_memory(view),
        also=above,
        last_left_out=view.step_ranges.following is not None,
        last_may_go=view.step_ranges.last_may_go,
    )


def _ledger_and_host(view: DeviceView) -> tuple[Ledger, tuple[HostActivity, HostSteps]]:
    window = view.window
    ledger = build_ledger(view.activity, window.start_ns, window.end_ns, view.idle_inputs, view.gaps)
    return ledger, host_activity(view)


_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


def begun(
    beside: Executor | None,
    analyse: Callable[_Asked, _Found],
    *arguments: _Asked.args,
    **named: _Asked.kwargs,
) -> Callable[[], _Found]:
    """What gives its result; without a thread for it, it is there by then."""
    if beside is not None:
        return beside.submit(analyse, *arguments, **named).result
    found = analyse(*arguments, **named)
    return lambda: found


def _nothing(_view: DeviceView, _kernels: AttributedKernels | None) -> None:
    return None


def captured_memory(view: DeviceView) -> DeviceMemory | None:
    """What the device's process had of it in the window; None where no allocation in it was recorded.

    What it is made of is not known: neither reader has the stacks of allocations.
    """
    trace, window, steps = view.trace, view.window, view.step_ranges
    use = trace.memory_use.take(np.flatnonzero(trace.memory_use.device == view.activity.device))
    # On the host a window of steps is where their ranges lie.
    start, end = window.start_ns, window.end_ns
    if len(steps.start_ns):
        start, end = int(steps.start_ns[0]), int(steps.end_ns[-1])
    first, last = np.searchsorted(use.time_ns, (start, end), "right").tolist()
    if first == last:
        return None
    from perfdoc.analyzers.memory.composition import MAX_MOMENTS
    from perfdoc.analyzers.memory.places import growth_of

    use = use.take(slice(max(first - 1, 0), last))
    allocated, reserved = use.allocated_bytes, use.reserved_bytes
    peak = int(allocated.argmax())
    is_reserved_known = bool((reserved >= 0).all())
    total = view.device.memory_bytes if is_reserved_known and not trace.memory_lacks else None
    at = unique(np.append(np.linspace(0, len(use) - 1, MAX_MOMENTS - 1).astype(int), peak))
    ends = steps.end_ns[(steps.end_ns >= use.time_ns[0])]
    utc = None if trace.utc_origin_ns is None else use.time_ns + trace.utc_origin_ns
    return DeviceMemory(
        path="",
        rank=None,
        device=view.device.ordinal,
        state="measured",
        reason=trace.memory_lacks,
        events=last - first,
        start_time_ns=_at(utc, 0),
        end_time_ns=_at(utc, -1),
        start_allocated_bytes=int(allocated[0]),
        peak_allocated_bytes=int(allocated[peak]),
        peak_above_start_bytes=int(allocated[peak] - allocated[0]),
        end_allocated_bytes=int(allocated[-1]),
        peak_time_ns=_at(utc, peak),
        peak_reserved_bytes=int(reserved.max()) if is_reserved_known else None,
        end_reserved_bytes=int(reserved[-1]) if is_reserved_known else None,
        headroom_bytes=None if total is None else total - int(reserved.max()),
        growth=growth_of(allocated[np.searchsorted(use.time_ns, ends, "right") - 1], "steps"),
        series=MemorySeries(
            event=at.tolist(),
            time_ns=(use.time_ns[at] - use.time_ns[0]).tolist(),
            category_bytes={"unknown": allocated[at].tolist()},
            reserved_bytes=reserved[at].tolist() if is_reserved_known else [],
            peak=int(np.searchsorted(at, peak)),
        ),
    )


def _at(utc_ns: I64 | None, row: int) -> int | None:
    return None if utc_ns is None else int(utc_ns[row])
