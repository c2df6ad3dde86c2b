"""The arguments of trace events, by category, and the lenient reading of their values."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.validate import MAX_CORRELATION

_UINT32_MINUS_ONE = 0xFFFFFFFF
_INT64_END = 1 << 63
_TRAILING_INTEGER = re.compile(r"(?:\A|stream )(-?\d{1,19})\s*\Z")
_HEX = re.compile(r"\A0x[0-9a-fA-F]{1,16}\Z")


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime or driver call."""

    correlation: Any = None


class ThreadNameArgs(msgspec.Struct, gc=False):
    """Arguments of a `thread_name` metadata event."""

    name: Any = None


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments that every row of a device may have."""

    device: Any = None
    in_device: Any = msgspec.field(name="inDevice", default=None)
    """Peer copies name the device that ran them so."""
    stream: Any = None
    correlation: Any = None


class CopyArgs(DeviceArgs, gc=False):
    """Arguments of a memory copy or set."""

    bytes: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)


class SyncArgs(DeviceArgs, gc=False):
    """Arguments of a `cuda_sync` row; `stream` is the one that waits."""

    kind: Any = msgspec.field(name="cuda_sync_kind", default=None)
    source_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    source_correlation: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    event: Any = msgspec.field(name="wait_on_cuda_event_id", default=None)


class EventArgs(DeviceArgs, gc=False):
    """Arguments of a `cuda_event` row (2025 and later)."""

    event: Any = msgspec.field(name="event_id", default=None)


class KernelArgs(DeviceArgs, gc=False):
    """Arguments of a kernel, with what PyTorch adds to a collective's kernel."""

    grid: Any = None
    block: Any = None
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    in_splits: Any = msgspec.field(name="In split size", default=None)
    dtype: Any = None
    group_size: Any = msgspec.field(name="Group size", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    source_rank: Any = msgspec.field(name="Src Rank", default=None)
    destination_rank: Any = msgspec.field(name="Dst Rank", default=None)
    rank: Any = msgspec.field(name="Rank", default=None)


def integer(value: object) -> int:
    """A whole number, also written as text (`7`, `stream 7`, `0x1f`); -1 for anything else.

    Raises ValueError for one that does not fit int64.
    """
    if type(value) is int:
        number = value
    elif isinstance(value, str) and (match := _TRAILING_INTEGER.search(value)):
        number = int(match.group(1))
    elif isinstance(value, str) and _HEX.match(value):
        number = int(value, 16)
    else:
        return UNKNOWN
    if not -_INT64_END <= number < _INT64_END:
        raise ValueError("a number that does not fit 64 bits")
    return number


def non_negative(value: object) -> int:
    """As integer, with -1 for every negative and for CUPTI's 32-bit `invalid`."""
    number = integer(value)
    return UNKNOWN if number < 0 or number == _UINT32_MINUS_ONE else number


def positive(value: object) -> int:
    """As non_negative, with -1 for 0 too: CUPTI counts correlations and graph nodes from 1."""
    return non_negative(value) or UNKNOWN


def correlation_id(value: object) -> int:
    """As positive, with -1 for what is no correlation id of CUPTI's too."""
    number = positive(value)
    return number if number < MAX_CORRELATION else UNKNOWN


def product(value: object) -> int:
    """The product of a launch dimension `[x, y, z]`; -1 where it is not one."""
    if type(value) is not list or not 1 <= len(value) <= 3:
        return UNKNOWN
    total = 1
    for part in value:
        if type(part) is not int or part <= 0:
            return UNKNOWN
        total *= part
    return total if total < _INT64_END else UNKNOWN


def text(value: object) -> str:
    """Text or a whole number as text; empty for anything else."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else ""
