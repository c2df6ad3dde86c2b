"""The reader of PyTorch profiler traces, plain or gzipped: from the collected rows to the Trace's tables.

Read: kernels, copies and sets, runtime and driver calls, synchronisations and event records, operators,
annotations and marks, collective metadata, process groups, GPU facts, `python_function` rows (with_stack)
of the program's own code; under the category names of every version since 1.8. ROCm builds use the same
names. Not read: flow arrows (the correlation ids say the same), GPU-side copies of annotations,
counters, and the profiler's own `Iteration Start` and `Record Window End` instants, which mark
its recording and no step. Events that are no objects are ignored and counted; a row of a category that is
read and has no true time or no name is set aside and counted (`traces/damage.py`).

Times: `ts` and `dur` are microseconds whatever `displayTimeUnit` says (that key sets what a viewer
shows). Time 0 is UTC `baseTimeNanoseconds` where the file has it; older files hold epoch times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.damage import IMPOSSIBLE_MEMORY, Span, forget, host_rows, without_shared
from perfdoc.traces.errors import TraceError
from perfdoc.traces.foreign import NAMES_KERNELS, list_of, writer_of
from perfdoc.traces.kineto.cutting import head_of
from perfdoc.traces.kineto.devices import (
    Launches,
    devices,
    distributed,
    gpus,
    launched,
    launches,
    processes,
    utc_origin_ns,
)
from perfdoc.traces.kineto.document import read_events
from perfdoc.traces.kineto.limits import capabilities, notes, off_scale, recorded
from perfdoc.traces.kineto.rows import EventRows
from perfdoc.traces.lengths import mended
from perfdoc.traces.memory import MAX_BYTES
from perfdoc.traces.model import (
    CAPABILITIES,
    UNKNOWN,
    ApiCalls,
    Capability,
    Copies,
    CopyKind,
    EventRecords,
    GraphLaunches,
    Kernels,
    Operators,
    Ranges,
    Syncs,
    Thread,
    Trace,
)
from perfdoc.traces.more_tables import MemoryUse, Payloads
from perfdoc.traces.table import I64, Rows, unique
from perfdoc.traces.validate import MAX_TIME_NS, check_devices


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """The tables whose rows belong to a device or its process."""

    pairs: tuple[tuple[int, int], ...]
    """(process, ordinal) of each device, in the order of the `device` columns."""
    kernels: Kernels
    copies: Copies
    syncs: Syncs
    event_records: EventRecords

    def without(self, ids: I64) -> DeviceTables:
        """The same without these correlation ids."""
        return replace(
            self,
            kernels=forget(ids, self.kernels),
            copies=forget(ids, self.copies),
            syncs=forget(ids, self.syncs),
            event_records=forget(ids, self.event_records),
        )


def device_tables(rows: EventRows, calls: Launches) -> DeviceTables:
    """Kernels, copies, synchronisations and event records with process and device filled in.

    A device is a (process, ordinal) that kernels or copies ran on. Raises TraceError where there are more
    than a node can have.
    """
    kernels, kernel_process = _with_process(rows.kernels, calls)
    copies, copy_process = _with_process(rows.copies, calls)
    syncs, sync_process = _with_process(rows.syncs, calls)
    records, record_process = _with_process(rows.event_records, calls)
    copies["ordinal"] = _of_gpu(rows, copies, copy_process, kernels["ordinal"], kernel_process)
    pairs = sorted(_pairs(kernel_process, kernels["ordinal"]) | _pairs(copy_process, copies["ordinal"]))
    check_devices(rows.path, len(pairs))
    index = {pair: position for position, pair in enumerate(pairs)}
    del syncs["ordinal"]  # not reliable for host-side waits; the model keeps the process only
    return DeviceTables(
        pairs=tuple(pairs),
        kernels=Kernels(device=_devices(index, kernel_process, kernels.pop("ordinal")), **kernels),  # type: ignore[arg-type]
        copies=Copies(device=_devices(index, copy_process, copies.pop("ordinal")), **copies),  # type: ignore[arg-type]
        syncs=Syncs(process=sync_process, event_sync=_unknown(sync_process), **syncs),  # type: ignore[arg-type]
        event_records=EventRecords(
            process=record_process,
            device=_devices(index, record_process, records.pop("ordinal")),  # type: ignore[arg-type]
            event_sync=_unknown(record_process),
            **records,
        ),
    )


def ranges(rows: EventRows) -> Ranges:
    """Annotations and marks; PyTorch has no domains."""
    columns = rows.ranges.columns()
    return Ranges(
        domain=np.zeros(len(rows.ranges), dtype=np.int32),
        never_closed=np.zeros(len(rows.ranges), bool),
        **columns,
    )


def _python_calls(rows: EventRows) -> Operators:
    """Frames of the program's own code; a function has no shapes."""
    none = np.zeros(len(rows.python_calls), dtype=np.int32)
    columns = rows.python_calls.columns()
    return Operators(dims=none, dtypes=none, values=none, strides=none, **columns)


def _memory_use(rows: EventRows, threads: Sequence[Thread], pairs: Sequence[tuple[int, int]]) -> MemoryUse:
    """Of the devices that work ran on, what PyTorch's allocator says it has of them."""
    c = rows.memory.columns()
    process = np.array([t.process for t in threads], np.int64)[c["thread"]]
    device = _devices({pair: i for i, pair in enumerate(pairs)}, process, c.pop("ordinal"))
    order = np.lexsort((c["time_ns"], device))
    del c["thread"]
    table = MemoryUse(device=device[order].astype(np.int32), **{name: c[name][order] for name in c})
    table = table.take(table.device >= 0)
    sizes = table.allocated_bytes, table.reserved_bytes
    fits = (np.minimum(*sizes) >= 0) & (np.maximum(*sizes) <= MAX_BYTES)
    fits &= (table.time_ns >= -MAX_TIME_NS) & (table.time_ns <= MAX_TIME_NS)
    rows.damage.add("memory event", IMPOSSIBLE_MEMORY, int(np.count_nonzero(~fits)))
    return table.take(fits)


def _payloads(rows: EventRows, kernel_rows: I64) -> Payloads:
    """Collective metadata of the kernels that are left, by their new rows."""
    found = rows.payloads.table()
    if len(kernel_rows) == len(rows.kernels):
        return found
    place = np.full(len(rows.kernels), UNKNOWN, np.int64)
    place[kernel_rows] = np.arange(len(kernel_rows))
    there = found.take(place[found.kernel] != UNKNOWN)
    return replace(there, kernel=place[there.kernel])


def _with_process(table: Rows, calls: Launches) -> tuple[dict[str, I64], I64]:
    columns = table.columns()
    process = processes(calls, columns["ordinal"], columns["correlation"])
    columns["ordinal"] = calls.merged.ordinals(columns["ordinal"])
    return columns, process


def _of_gpu(rows: EventRows, copies: dict[str, I64], process: I64, ordinal: I64, of_kernel: I64) -> I64:
    """The GPU of each copy. ROCm 7 numbers a copy to the host by the CPU that it goes to: it is of the GPU
    that alone ran its process's kernels."""
    found, to_host = copies["ordinal"], copies["kind"] == CopyKind.DEVICE_TO_HOST
    if to_host.any() and any(name.startswith("hip") for name in rows.strings.values):
        for pid in unique(process[to_host]).tolist():
            if len(used := unique(ordinal[of_kernel == pid])) == 1:
                found = np.where(to_host & (process == pid), used[0], found)
    return found


def _pairs(process: I64, ordinal: I64) -> set[tuple[int, int]]:
    changes = (process[1:] != process[:-1]) | (ordinal[1:] != ordinal[:-1])
    first = np.concatenate(([0], np.flatnonzero(changes) + 1)) if len(process) else np.empty(0, np.int64)
    return set(zip(process[first].tolist(), ordinal[first].tolist(), strict=True))


def _devices(index: dict[tuple[int, int], int], process: I64, ordinal: I64) -> I64:
    """The device of every row; -1 for a (process, ordinal) that nothing ran on."""
    device = _unknown(process)
    for (pid, gpu), position in index.items():
        device[(process == pid) & (ordinal == gpu)] = position
    return device


def _unknown(like: I64) -> I64:
    return np.full(len(like), UNKNOWN, dtype=np.int64)


_NO_STACKS = "the capture has no Python stacks: record with torch.profiler.profile(with_stack=True)"
_NO_SHAPES = "the capture has no operator shapes: record with torch.profiler.profile(record_shapes=True)"


def read_kineto(path: Path) -> Trace:
    """Read one PyTorch profiler trace.

    A capture without GPU rows gives a Trace without kernels. Raises TraceError (one line: what, where,
    what to do) for a file that is missing, truncated, malformed, too large or no profiler trace, and
    for times that cannot be true.
    """
    facts, rows = read_events(path, lambda: EventRows(path))
    rows.settle()
    unlinked = ((t.columns()["correlation"] == UNKNOWN).all() for t in (rows.kernels, rows.api_calls))
    if by_external := rows.may_link and all(unlinked):
        from perfdoc.traces.kineto.external import EXTERNAL_DECODERS, with_own_ids  # few files are so

        _, rows = read_events(path, lambda: EventRows(path, EXTERNAL_DECODERS))
        rows.settle()
    other = writer_of((*rows.process_names, *rows.unknown))
    if other and (other[0] in NAMES_KERNELS or not len(rows.kernels)):
        raise TraceError(path, f"is a trace of {other[0]}, which perfdoc does not read.", other[1])
    of_host = any(map(len, (rows.api_calls, rows.ranges, rows.operators)))
    if not len(rows.kernels) and (other := list_of(head_of(path), events=of_host)):
        raise TraceError(path, *other)
    rows.require_some()
    ranks, gpu_facts = distributed(facts.distributed), gpus(facts.device_properties)
    threads, damage = rows.host_threads(), rows.damage
    every_call = ApiCalls(**rows.api_calls.columns())
    every_call, lost = with_own_ids(every_call, rows) if by_external else without_shared(every_call, damage)
    every_operator, every_range = Operators(**rows.operators.columns()), ranges(rows)
    thread, placed = every_call.thread.astype(np.int64), rows.kernels.columns()["ordinal"]
    by_correlation = launches(threads, thread, every_call.correlation, rows.places, placed)
    tables = device_tables(rows, by_correlation).without(lost)
    span = Span.of((every_call, every_operator, every_range), (tables.kernels, tables.copies))
    calls, _ = host_rows(every_call, "call", span, damage)
    operators, _ = host_rows(every_operator, "operator", span, damage)
    annotations, _ = host_rows(every_range, "range", span, damage)
    frames, _ = host_rows(_python_calls(rows), "Python call", span, damage)
    syncs, _ = host_rows(tables.syncs, "synchronisation", None, damage)
    none = GraphLaunches.empty()
    device = mended(path, tables.kernels, tables.copies, none, calls, rows.strings.values, damage)
    timed = (device.kernels, device.copies, calls, syncs, operators, annotations)
    middle = next((int(t.start_ns[len(t) // 2]) for t in timed if len(t)), None)  # one may be damaged
    launch_count, _ = launched(by_correlation, device.kernels.correlation)
    launched_kernels = int(np.count_nonzero(launch_count))
    origin = utc_origin_ns(facts.base_time_ns, middle)
    listed = {group.name for group in ranks.groups}
    trace = Trace(
        path=path,
        format="kineto",
        tool_version=None,
        schema=None if facts.schema is None else str(facts.schema)[:40],
        utc_origin_ns=origin,
        devices=devices(tables.pairs, gpu_facts, ranks, path.name),
        threads=threads,
        strings=rows.strings.values,
        kernels=device.kernels,
        untimed=device.untimed,
        copies=device.copies,
        api_calls=calls,
        syncs=syncs,
        event_records=tables.event_records,
        ranges=annotations,
        operators=operators,
        python_calls=frames,
        memory_use=_memory_use(rows, threads, tables.pairs),
        python_calls_reason=_NO_STACKS,
        operator_shapes_reason=_NO_SHAPES,
        payloads=_payloads(rows, device.kernel_rows),
        peers_are_global=True,
        groups=(*ranks.groups, *(g for g in rows.payloads.groups.values() if g.name not in listed)),
        world_size=ranks.world_size,
        recorded=recorded(rows),
        capabilities=dict.fromkeys(CAPABILITIES, Capability(available=False)),
    )
    shown = capabilities(
        trace,
        launched_kernels=launched_kernels,
        lists_gpus=facts.device_properties is not None,
        named=(*rows.process_names, *rows.unknown),
    )
    if rows.of_paddle:  # whose users have none of PyTorch's switches
        shown = {name: replace(one, remedy="") for name, one in shown.items()}
    return replace(
        trace,
        capabilities=shown,
        notes=(
            *damage.notes(),
            *off_scale(trace),
            *notes(
                rows,
                repaired_file=facts.repaired,
                broken_off=facts.broken_off,
                kernels=len(device.kernels),
                launched_kernels=launched_kernels,
                host_processes=len(by_correlation.host_processes),
                clock_disagrees=origin is None and middle is not None and bool(facts.base_time_ns),
            ),
        ),
    )
