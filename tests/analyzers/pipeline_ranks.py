"""From captures to the pipeline results of their devices, as the worker processes make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.device.activity import device_activity
from perfdoc.analyzers.device.cpu_rank import cpu_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.analyzers.pipeline.rank import PipelineRank, pipeline_rank
from perfdoc.traces.job_facts import facts_beside
from perfdoc.traces.load import read_trace
from perfdoc.traces.run_facts import with_run_facts


def views_of_file(path: Path) -> list[DeviceView]:
    """The view of every device of a capture, CPU ranks among them."""
    trace = with_run_facts(read_trace(path))
    trace = with_marked_ranks(trace, marked_ranks(trace))
    launches, known = find_launches(trace), find_known_ranges(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    views = []
    for device in range(len(trace.devices)):
        activity = device_activity(trace, device, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(trace, activity, known, launches)
        else:
            on_host = cpu_activity(trace, device)
            assert on_host is not None
            activity = on_host[0]
        window, step_ranges = find_window(trace, activity, WindowRequest(), known)
        views.append(
            DeviceView(
                trace=trace,
                activity=activity,
                window=window,
                step_ranges=step_ranges,
                kinds=kinds,
                launches=launches,
                known=known,
                facts=facts_beside(path),
            )
        )
    return views


def pipeline_ranks(paths: Iterable[Path]) -> list[PipelineRank]:
    """The result of every device of some captures."""
    return [pipeline_rank(view) for path in paths for view in views_of_file(path)]


@dataclass(frozen=True, kw_only=True)
class RankOffsets:
    """The plainest common time: how far each rank's clock is ahead."""

    offset_ns: Sequence[int]
    resolution_ns: int | None = 0

    def resolution_between(self, members: Sequence[int]) -> int | None:
        """The same for all."""
        return self.resolution_ns

    def aligned(self, member: int, time_ns: I64) -> I64:
        """Times less the offset."""
        return time_ns - self.offset_ns[member]
