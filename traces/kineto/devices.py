"""GPUs, ranks and groups of a PyTorch trace, its clock's origin, and which process drove which GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.groups import ProcessGroup
from perfdoc.profiling.gpus import named_by_size
from perfdoc.records import dataclass
from perfdoc.traces.kineto.merged import Merged, Places
from perfdoc.traces.kineto.payload import ranks_of
from perfdoc.traces.kineto.values import INT64_END, integer, non_negative, text
from perfdoc.traces.model import UNKNOWN, Device, Thread
from perfdoc.traces.table import I64, unique
from perfdoc.traces.validate import EPOCH_NS

_HANDLERS_FILE = pattern_of(r"(?P<host>[^/]+)_(?P<pid>[0-9]{1,10})\.[0-9]+\.pt\.trace\.json")
"""torch.profiler.tensorboard_trace_handler: `node012_4711.1694128201545.pt.trace.json.gz`."""


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """distributedInfo; None and empty where it does not say."""

    rank: int | None
    world_size: int | None
    groups: tuple[ProcessGroup, ...]


def gpus(device_properties: Any) -> dict[int, Device]:
    """The GPUs of deviceProperties, or computeProperties, by ordinal, of no process; without odd ones."""
    found: dict[int, Device] = {}
    for entry in device_properties if isinstance(device_properties, list) else ():
        if not isinstance(entry, dict) or (ordinal := non_negative(entry.get("id"))) == UNKNOWN:
            continue
        sm_count = _known(entry.get("numSms", entry.get("multiProcessorCount")))
        found[ordinal] = Device(
            process=UNKNOWN,
            ordinal=ordinal,
            gpu_name=named_by_size(text(entry.get("name")) or None, sm_count),
            sm_count=sm_count,
            memory_bytes=_known(entry.get("totalGlobalMem")),
        )
    return found


def distributed(info: Any) -> Distributed:
    """Rank, world size and process groups of distributedInfo (an object, or its JSON as text)."""
    info = parsed(info)
    if not isinstance(info, dict):
        return Distributed(rank=None, world_size=None, groups=())
    rank = non_negative(info.get("rank"))
    config = parsed(info.get("pg_config"))
    entries = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    groups = tuple(
        ProcessGroup(
            name=text(entry.get("pg_name")),
            description=text(entry.get("pg_desc")),
            ranks=ranks_of(entry.get("ranks")),
            backend=text(entry.get("backend_config")),
        )
        for entry in entries
        if isinstance(entry, dict) and text(entry.get("pg_name"))
    )
    return Distributed(
        rank=None if rank == UNKNOWN else rank, world_size=_known(info.get("world_size")), groups=groups
    )


def utc_origin_ns(base_time_ns: Any, time_ns: int | None) -> int | None:
    """UTC epoch of time 0: baseTimeNanoseconds, or 0 where the times are epoch times themselves.

    time_ns: one of the capture's. None where neither holds, or where both do.
    """
    is_epoch = time_ns is not None and time_ns >= EPOCH_NS
    base = base_time_ns if type(base_time_ns) is int and 0 < base_time_ns < INT64_END else None
    if base is not None:
        return None if is_epoch else base
    return 0 if is_epoch else None


def parsed(value: Any) -> Any:
    """A value of distributedInfo, which may be JSON as text; None where that cannot be read."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _known(value: Any) -> int | None:
    number = integer(value)
    return number if number > 0 else None


@dataclass(frozen=True, kw_only=True)
class Launches:
    """API calls by correlation, and the process of each."""

    correlation: I64
    process: I64
    host_processes: tuple[int, ...]
    """Processes with API calls, or with any host row where there are none."""
    merged: Merged


def launches(threads: Sequence[Thread], thread: I64, correlation: I64, places: Places, gpus: I64) -> Launches:
    """The API calls of a capture (columns of ApiCalls), sorted by correlation for look-up. gpus: places of
    the kernels, as these in the file's order."""
    process_of = np.array([entry.process for entry in threads], dtype=np.int64)
    process = process_of[thread] if len(thread) else np.empty(0, dtype=np.int64)
    hosts = unique(process) if len(process) else unique(process_of)
    order = np.lexsort((process, correlation))
    keep = order[correlation[order] != UNKNOWN]
    return Launches(
        correlation=correlation[keep],
        process=process[keep],
        host_processes=tuple(hosts.tolist()),
        merged=places.resolved(gpus, process, hosts.tolist()),
    )


def launched(calls: Launches, correlation: I64) -> tuple[I64, I64]:
    """For every row: how many calls share its correlation, and the process of the first and only one.

    The process is -1 where no call or calls of several processes share it.
    """
    first = np.searchsorted(calls.correlation, correlation, side="left")
    end = np.searchsorted(calls.correlation, correlation, side="right")
    count = (end - first).astype(np.int64)
    process = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    found = count > 0
    # Sorted by process within a correlation, so equal ends mean that all are equal.
    low, high = calls.process[first[found]], calls.process[end[found] - 1]
    process[found] = np.where(low == high, low, UNKNOWN)
    return count, process


_NEARLY_ALL = 0.9


def processes(calls: Launches, ordinal: I64, correlation: I64) -> I64:
    """The process of every device row.

    One host process owns all rows. With several, a GPU that one process alone launched to belongs to
    it; on a shared GPU each row goes by its own correlation, and stays at -1 where that is ambiguous. Ranks
    that were merged into one file count their ids alike: what is ambiguous goes to whom nearly all of a
    GPU's other rows go, a few of which may have the id of another rank's call; what mostly is, to the process
    that `Merged` shows.
    """
    if len(calls.host_processes) <= 1:
        owner = calls.host_processes[0] if calls.host_processes else UNKNOWN
        return np.full(len(ordinal), owner, dtype=np.int64)
    _, process = launched(calls, correlation)
    for gpu in unique(ordinal).tolist():
        rows = ordinal == gpu
        owners, count = np.unique(process[rows & (process != UNKNOWN)], return_counts=True)
        if gpu in calls.merged.owner and 2 * count.sum() <= np.count_nonzero(rows):
            process[rows] = calls.merged.owner[gpu]
        elif len(owners) == 1:
            process[rows] = owners[0]
        elif len(owners) and count.max() >= _NEARLY_ALL * count.sum():
            process[rows & (process == UNKNOWN)] = owners[count.argmax()]
    return process


def devices(
    pairs: Sequence[tuple[int, int]], gpus: Mapping[int, Device], distributed: Distributed, file: str
) -> list[Device]:
    """The Device of each (process, ordinal). A rank is one process: with several, nobody gets it. file: its
    name, in which PyTorch's own handler writes the host and the process."""
    named = _HANDLERS_FILE.match(file)
    one_process = len({process for process, _ in pairs}) == 1
    rank = distributed.rank if one_process else None
    # Other vendors count rows' devices and deviceProperties apart: where all are alike, it is any of them.
    kinds = {replace(gpu, ordinal=0) for gpu in gpus.values()}
    other = next(iter(kinds)) if len(kinds) == 1 else None
    evidence = "none" if rank is None else "distributedInfo"
    return [
        replace(
            gpus.get(ordinal, other or Device(process=process, ordinal=ordinal)),
            process=process,
            ordinal=ordinal,
            host=named["host"] if named and int(named["pid"]) == process else None,
            rank=rank,
            rank_evidence=evidence,
        )
        for process, ordinal in pairs
    ]
