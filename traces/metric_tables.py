"""What the profiler sampled of a GPU's counters."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.traces.table import I32, I64, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricSamples(Table):
    """Samples of GPU metrics by GPU, metric, then time."""

    time_ns: I64
    """End of the time that the sample is of: it begins at the sample before it."""
    gpu: I32
    """The profiler's own number of the GPU; `Trace.metric_gpus` tells whose it is."""
    metric: I32
    """Index into Trace.strings: name and unit, `SMs Active [Throughput %]`."""
    value: I64
    """In the metric's unit."""
