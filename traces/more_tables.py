"""Tables beside the main ones of traces/model.py: communication, threads to the system, counters of GPUs."""

from __future__ import annotations

from perfdoc.records import dataclass
from perfdoc.traces.table import I32, I64, U64, Bool, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class Payloads(Table):
    """What a capture says about a communication: NCCL's NVTX payload or Kineto's kernel arguments.

    Exactly one of `kernel` and `range` is set: Kineto attaches the facts to the kernel, Nsight to the
    host range of the NCCL call.
    """

    kernel: I64
    """Row of Trace.kernels; -1 none."""
    range: I64
    """Row of Trace.ranges; -1 none."""
    operation: I32
    """Name of the collective as the capture spells it."""
    communicator: U64
    """NCCL's communicator id (64-bit hash), equal on every rank of the communicator; 0 unknown."""
    group_name: I32
    """PyTorch's process-group name; index of the empty string when unknown."""
    group_description: I32
    """PyTorch's process-group description; index of the empty string when unknown."""
    group_size: I64
    """Ranks in the group; -1 unknown."""
    bytes: I64
    """Message size as NCCL's payload counts it (see docs/formats.md); -1 unknown."""
    dtype: I32
    """Element type as the capture spells it; index of the empty string when unknown."""
    sequence: I64
    """Sequence number within the group; -1 unknown."""
    peer: I64
    """Other rank of a send or receive; -1 none."""
    rank: I64
    """Own rank within the communicator (communicator creation rows); -1 unknown."""
    sent_bytes: I64
    """Of an all-to-all: to all ranks, itself included; -1 unknown, or another operation."""
    received_bytes: I64
    most_sent_bytes: I64
    """The largest part, to one rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreadStates(Table):
    """Stretches in which a thread is known to have been on or off a CPU, by thread, then time.

    Those of one thread are disjoint; where none lies, its state is unknown.
    """

    start_ns: I64
    end_ns: I64
    thread: I32
    """Index into Trace.threads."""
    on_cpu: Bool
    """Off it, the thread waited: for a lock, input or output, a sleep's end, or a free core."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OsCalls(Table):
    """Calls into the C library that may wait, by thread, then time (Nsight leaves out short ones)."""

    start_ns: I64
    end_ns: I64
    thread: I32
    """Index into Trace.threads."""
    name: I32


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


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryUse(Table):
    """What a process has of a device's memory, by device, then time: each row counts until the next one."""

    time_ns: I64
    device: I32
    allocated_bytes: I64
    """In tensors as PyTorch counts them; in an Nsight export, what CUDA allocated."""
    reserved_bytes: I64
    """What PyTorch, or a pool of CUDA's, holds of the device for them; -1 unknown."""
