"""What captures say about communication, in columns; see traces/model.py for units and unknown values."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.traces.table import I32, I64, U64, Table


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
    """Message size as NCCL's payload counts it (see docs/units.md); -1 unknown."""
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
