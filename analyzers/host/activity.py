"""What the host did to one device: every part of the host analysis, measured together.

Each part has a state of its own. The parts share one look at the CUDA calls and at the gaps.
"""

from __future__ import annotations

from perfdoc.analyzers.device.event_counts import REMEDY
from perfdoc.analyzers.device.host_ranges import launches_missing
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.blocking_calls import alloc_calls, sync_calls
from perfdoc.analyzers.host.calls import host_calls
from perfdoc.analyzers.host.idle import by_thread, host_idle
from perfdoc.analyzers.host.launching import graph_coverage, launch_queue
from perfdoc.analyzers.host.small_kernels import small_kernels
from perfdoc.analyzers.host.split import split_host_idle
from perfdoc.analyzers.host.steps import HostSteps, data_pauses, gc_pauses, host_steps
from perfdoc.results.host import AllocCalls, DataPauses, HostActivity, HostPauses, HostSplit, SyncCalls
from perfdoc.results.quality import MEASURED


def host_activity(view: DeviceView) -> tuple[HostActivity, HostSteps]:
    """What the capture shows of the host of one device; and its steps, for comparing ranks."""
    idle = host_idle(view)
    gc, data = gc_pauses(view, idle), data_pauses(view, idle)
    if view.events.partial:
        gc = HostPauses.missing(view.events.partial, REMEDY)
        data = DataPauses.missing(view.events.partial, REMEDY)
    gc_known = gc.state == "measured"
    queue, small, graphs = launch_queue(view, idle), small_kernels(view, idle), graph_coverage(view)
    missing = launches_missing(view)
    if missing is not None:
        nothing = {gc.state, data.state, graphs.state} == {"not_measured"}
        found = HostActivity(
            state="not_measured" if nothing else "measured",
            reason=missing[0] if nothing else "",
            remedy=missing[1] if nothing else "",
            launch_queue=queue,
            idle_split=HostSplit.missing(*missing),
            sync_calls=SyncCalls.missing(*missing),
            alloc_calls=AllocCalls.missing(*missing),
            gc=gc,
            data=data,
            small_kernels=small,
            graphs=graphs,
        )
        return found, host_steps(view, None, gc_known=gc_known)
    calls = host_calls(view)
    threads = list(by_thread(idle, calls))
    found = HostActivity(
        **MEASURED,
        launch_queue=queue,
        idle_split=split_host_idle(view, idle, calls, threads),
        sync_calls=sync_calls(view, idle, calls, threads),
        alloc_calls=alloc_calls(view, calls, threads),
        gc=gc,
        data=data,
        small_kernels=small,
        graphs=graphs,
    )
    return found, host_steps(view, calls, gc_known=gc_known)
