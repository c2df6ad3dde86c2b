"""The reader of PyTorch profiler traces (Kineto's Chrome JSON), plain or gzipped.

Read: kernels, copies and sets, runtime and driver calls, synchronisations and event records, operators,
annotations and marks, collective metadata, process groups, GPU facts, `python_function` rows (with_stack)
of the program's own code; under the category names of every version since 1.8. ROCm builds use the same
names. Not read: flow arrows (the correlation ids say the same), GPU-side copies of annotations, memory
instants, counters, and the profiler's own `Iteration Start` and `Record Window End` instants, which mark
its recording and no step. Events that are no objects are ignored and counted; a row of a category that is
read must have a true time and a name, or the file is refused (Python functions aside).

Times: `ts` and `dur` are microseconds whatever `displayTimeUnit` says (that key sets what a viewer
shows). Time 0 is UTC `baseTimeNanoseconds` where the file has it; older files hold epoch times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto_capabilities import capabilities
from perfdoc.traces.kineto_devices import devices, launched, launches
from perfdoc.traces.kineto_json import read_document
from perfdoc.traces.kineto_meta import distributed, gpus, utc_origin_ns
from perfdoc.traces.kineto_notes import notes
from perfdoc.traces.kineto_rows import EventRows
from perfdoc.traces.kineto_tables import device_tables, first_ns, ranges
from perfdoc.traces.model import CAPABILITIES, ApiCalls, Capability, GraphLaunches, Operators, Trace
from perfdoc.traces.validate import check_activity, host_rows_that_fit, left_out_note

_SUFFIXES = (".json", ".json.gz")


def is_kineto_name(path: Path) -> bool:
    """Whether a file is named like a profiler trace (`.json`, `.pt.trace.json`, either with `.gz`)."""
    return path.name.lower().endswith(_SUFFIXES)


def read_kineto(path: Path) -> Trace:
    """Read one PyTorch profiler trace.

    A capture without GPU rows gives a Trace without kernels. Raises TraceError (one line: what, where,
    what to do) for a file that is missing, truncated, malformed, too large or no profiler trace, and
    for times that cannot be true.
    """
    document = read_document(path)
    rows = EventRows(path)
    rows.read(document.events)
    first = first_ns(rows)
    try:
        ranks, gpu_facts = distributed(document.distributed), gpus(document.device_properties)
    except ValueError as error:
        remedy = "The file is damaged: export it again."
        raise TraceError(path, f"deviceProperties or distributedInfo hold {error}.", remedy) from None
    threads = rows.host_threads()
    call_columns = rows.api_calls.columns()
    calls, bad_calls = host_rows_that_fit(ApiCalls(**call_columns))  # type: ignore[arg-type]
    by_correlation = launches(threads, call_columns["thread"], call_columns["correlation"])
    tables = device_tables(rows, by_correlation)
    check_activity(path, tables.kernels, tables.copies, GraphLaunches.empty())
    annotations, bad_ranges = host_rows_that_fit(ranges(rows))
    operators, bad_operators = host_rows_that_fit(Operators(**rows.operators.columns()))  # type: ignore[arg-type]
    frames, _ = host_rows_that_fit(Operators(**rows.python_calls.columns()))  # type: ignore[arg-type]
    syncs, bad_syncs = host_rows_that_fit(tables.syncs)
    launch_count, _ = launched(by_correlation, tables.kernels.correlation)
    launched_kernels = int(np.count_nonzero(launch_count))
    origin = utc_origin_ns(document.base_time_ns, first)
    listed = {group.name for group in ranks.groups}
    trace = Trace(
        path=path,
        format="kineto",
        tool_version=None,
        schema=None if document.schema is None else str(document.schema)[:40],
        utc_origin_ns=origin,
        devices=devices(tables.pairs, gpu_facts, ranks),
        threads=threads,
        strings=rows.strings.values,
        kernels=tables.kernels,
        copies=tables.copies,
        api_calls=calls,
        syncs=syncs,
        event_records=tables.event_records,
        ranges=annotations,
        operators=operators,
        python_calls=frames,
        payloads=rows.payloads.table(),
        groups=(*ranks.groups, *(g for g in rows.payloads.groups.values() if g.name not in listed)),
        world_size=ranks.world_size,
        capabilities=dict.fromkeys(CAPABILITIES, Capability(available=False)),
    )
    return replace(
        trace,
        capabilities=capabilities(trace, launched_kernels=launched_kernels),
        notes=(
            *left_out_note(bad_calls + bad_ranges + bad_operators + bad_syncs),
            *notes(
                rows,
                repaired_file=document.repaired,
                kernels=len(tables.kernels),
                launched_kernels=launched_kernels,
                host_processes=len(by_correlation.host_processes),
                clock_disagrees=origin is None and first is not None and bool(document.base_time_ns),
            ),
        ),
    )
