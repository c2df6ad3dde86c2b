"""Reading captures: the Trace model and one reader per format."""

from perfdoc.traces.errors import NoGpuActivityError, TraceError
from perfdoc.traces.model import (
    ApiCalls,
    Capability,
    Copies,
    CopyKind,
    Device,
    EventRecords,
    Format,
    GraphLaunches,
    Kernels,
    Note,
    Operators,
    RangeKind,
    Ranges,
    SyncKind,
    Syncs,
    Thread,
    Trace,
)
from perfdoc.traces.more_tables import Payloads

__all__ = [
    "ApiCalls",
    "Capability",
    "Copies",
    "CopyKind",
    "Device",
    "EventRecords",
    "Format",
    "GraphLaunches",
    "Kernels",
    "NoGpuActivityError",
    "Note",
    "Operators",
    "Payloads",
    "RangeKind",
    "Ranges",
    "SyncKind",
    "Syncs",
    "Thread",
    "Trace",
    "TraceError",
]
