"""Nsight Systems exports, from either container, as a Trace; a report is exported first."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.kept import table as read_table
from perfdoc.profiling.marks import parse_rank_mark
from perfdoc.profiling.nsys.command import OVERRIDE, export_sqlite
from perfdoc.profiling.vocabulary import RANK_MARK
from perfdoc.traces.damage import Damage, Span, forget, host_rows, without_shared
from perfdoc.traces.errors import MissingToolError, NoGpuActivityError, TraceError
from perfdoc.traces.foreign import database_of
from perfdoc.traces.lengths import mended
from perfdoc.traces.model import ApiCalls, Capability, Copies, GraphLaunches, Kernels, Note, Trace
from perfdoc.traces.nsys import gpu as nsys_gpu
from perfdoc.traces.nsys import host as nsys_host
from perfdoc.traces.nsys.ids import Ids
from perfdoc.traces.nsys.memory import EVENTS, LACKS, read_memory_use
from perfdoc.traces.nsys.meta import find_secrets, identify_gpus, read_meta, read_warnings, shared_gpus
from perfdoc.traces.nsys.payload import PAYLOAD_COLUMNS, read_payloads
from perfdoc.traces.nsys.sampled import OS_CALLS, read_metrics, read_scheduling
from perfdoc.traces.nsys.source import NsysSource, SqliteSource
from perfdoc.traces.table import among, hashed
from perfdoc.traces.validate import EPOCH_NS

_NO_STACKS = "Python stacks of Nsight captures are not read; the range stands in for the call site"
_LACKS = {
    name: Capability(available=False, reason=reason, remedy=remedy)
    for name, (reason, remedy) in read_table(Path(__file__).resolve().with_name("lacks.yaml")).items()
}
_FIRST_ROWS = 65_536
"""Nearly every export has a launch among its first rows, which spares the look at all of them."""


def any_launch_found(api: ApiCalls, ids: Ids, activities: Sequence[Kernels | GraphLaunches | Copies]) -> bool:
    """Whether at least one activity has the correlation id of a call of its own process."""
    stride = 1 + max(int(t.correlation.max(initial=0)) for t in (api, *activities))
    _, process = hashed([t.process for t in ids.threads] + [d.process for d in ids.devices])
    of_thread, of_device = np.split(process, [len(ids.threads)])
    for limit in (_FIRST_ROWS, None):
        rows = np.flatnonzero((api.correlation[:limit] >= 0) & (api.thread[:limit] >= 0))
        calls = of_thread[api.thread[rows]] * stride + api.correlation[rows]
        for table in activities:
            known = np.flatnonzero(table.correlation[:limit] >= 0)
            keys = of_device[table.device[known]] * stride + table.correlation[known]
            if len(calls) and among(keys, calls).any():
                return True
    return False


_CAPTURE = "nsys profile --trace=cuda,nvtx …"


def read_nsys_sqlite(path: Path) -> Trace:
    """A file of `nsys export --type sqlite`. Raises TraceError where it is not one."""
    source = SqliteSource(path)
    if other := database_of(source.tables):
        source.close()
        raise TraceError(path, f"is a database of {other[0]}, which perfdoc does not read.", other[1])
    return _read_and_close(source)


def read_nsys_parquet(path: Path) -> Trace:
    """A folder of `nsys export --type parquetdir`. Raises TraceError where it is not one."""
    from perfdoc.traces.nsys.parquet_folder import ParquetSource

    return _read_and_close(ParquetSource(path))


def _read_and_close(source: NsysSource) -> Trace:
    try:
        return read_nsys(source)
    finally:
        source.close()


def read_nsys(source: NsysSource) -> Trace:
    """Read every table that perfdoc uses.

    Raises TraceError where the export holds no GPU activity, with the way to capture some.
    """
    meta = read_meta(source)
    has_kernels, has_graphs = (bool(source.columns(t)) for t in (nsys_gpu.KERNEL, nsys_gpu.GRAPH_TRACE))
    export = "Export the report: nsys export --type sqlite REPORT.nsys-rep"
    if not meta.is_nsight and not has_kernels and not has_graphs:
        raise TraceError(source.path, "is not a Nsight Systems export (none of its tables is there).", export)
    if has_kernels and not source.columns("StringIds"):
        raise TraceError(source.path, "has no names (no StringIds table): what ran cannot be told.", export)
    source.plan(
        [
            (nsys_gpu.KERNEL, tuple(nsys_gpu.KERNEL_COLUMNS)),
            (nsys_host.API, tuple(nsys_host.API_COLUMNS)),
            (nsys_host.NVTX, nsys_host.NVTX_COLUMNS),
            (nsys_host.NVTX, PAYLOAD_COLUMNS),
        ]
    )
    ids = Ids(source)
    kernels = nsys_gpu.read_kernels(source, ids)
    copies = nsys_gpu.read_copies(source, ids)
    graphs = nsys_gpu.read_graph_launches(source, ids)
    damage = Damage()
    calls, lost = without_shared(nsys_host.read_api_calls(source, ids), damage)
    kernels, copies, graphs = forget(lost, kernels), forget(lost, copies), forget(lost, graphs)
    api, _ = host_rows(calls, "call", Span.of((calls,), (kernels, copies)), damage)
    found = mended(source.path, kernels, copies, graphs, api, ids.strings.values, damage)
    kernels, copies, graphs = found.kernels, found.copies, found.graphs
    capture_end = max(int(t.end_ns.max(initial=0)) for t in (kernels, copies, graphs, api))
    middle = next((int(t.start_ns[len(t) // 2]) for t in (kernels, graphs, api) if len(t)), 0)
    utc_origin_ns = 0 if middle >= EPOCH_NS else meta.utc_origin_ns  # `nsys export --ts-normalize=true`
    nvtx = nsys_host.read_ranges(source, ids, capture_end)
    if not len(kernels) and not len(graphs) and not _is_cpu_run(ids.strings.values):
        raise NoGpuActivityError(
            source.path, *_without_kernels(api, ids.strings.values, has_table=has_kernels)
        )
    memory = read_memory_use(source, ids, damage)
    records = forget(lost, nsys_host.read_event_records(source, ids))
    syncs, _ = host_rows(forget(lost, nsys_host.read_syncs(source)), "synchronisation", None, damage)
    payloads = read_payloads(source, nvtx.ranges, nvtx.source_row, ids.strings)
    states, os_calls, unreadable = read_scheduling(source, ids)
    ids.name_threads()
    devices = identify_gpus(source, ids.devices)
    metrics = read_metrics(source, devices, ids.strings)

    notes = read_warnings(source) + find_secrets(source) + unreadable + list(metrics.notes)
    notes += shared_gpus(devices)
    damage.add("NVTX range", "a time or length beyond 2^61 ns", nvtx.impossible_times)
    damage.add("NVTX range", "it ends before it starts", nvtx.bad_rows)
    for column, rows in source.odd_values.items():
        damage.add("value", f"not of its column's kind ({column})", rows, done="taken for unknown")
    notes += damage.notes()
    if nvtx.open_ranges:
        notes.append(
            Note(
                code="open-ranges",
                message=f"NVTX ranges never close ({nvtx.open_ranges:,}): each counts to the capture's end.",
                remedy="Close every range, or end the capture outside of them.",
            )
        )
    notes += nsys_gpu.migrations(source, int((kernels.end_ns - kernels.start_ns).sum()), ids.strings.values)
    if ids.missing_names:
        notes.append(
            Note(code="missing-names", message=f"{ids.missing_names:,} names are missing from StringIds.")
        )
    in_graphs = int(np.count_nonzero(kernels.graph_node >= 0))
    if len(api) and len(kernels) > in_graphs and not any_launch_found(api, ids, (kernels, graphs)):
        notes.append(
            Note(
                code="kernels-without-launch",
                message=f"None of {len(kernels):,} kernels has the correlation id of a CUDA API call: ids "
                "were lost, so why the GPU was idle is not known.",
            )
        )
    has = {
        "kernels": len(kernels) > 0,
        # Kernels prove that the GPU was traced: no copies beside them is a measurement of none.
        "copies": len(copies) > 0 or len(kernels) > 0,
        "graph_nodes": len(graphs) == 0,
        "api_calls": len(api) > 0,
        "launch_correlation": any_launch_found(api, ids, (kernels, graphs, copies)),
        "ranges": len(nvtx.ranges) > 0,
        "event_edges": len(records) > 0 and bool((syncs.kind == 2).any()),
        "collective_payloads": len(payloads) > 0,
        "group_descriptions": False,
        "gpu_identity": any(d.gpu_name for d in devices),
        "utc_clock": utc_origin_ns is not None,
        "thread_states": len(states) > 0 or source.count(OS_CALLS) > 0,
    }
    capabilities = {
        name: Capability(available=True) if there else _LACKS[name] for name, there in has.items()
    }
    if in_graphs:
        notes.append(
            Note(
                code="graph-kernels",
                message=f"{in_graphs:,} kernels ran inside CUDA graphs, traced one by one.",
            )
        )
    return Trace(
        path=source.path,
        format=source.format,
        tool_version=meta.tool_version,
        schema=meta.schema,
        utc_origin_ns=utc_origin_ns,
        devices=devices,
        threads=ids.threads,
        strings=ids.strings.values,
        kernels=kernels,
        untimed=found.untimed,
        copies=copies,
        graph_launches=graphs,
        api_calls=api,
        syncs=syncs,
        event_records=records,
        ranges=nvtx.ranges,
        thread_states=states,
        os_calls=os_calls,
        metric_samples=metrics.samples,
        metric_gpus=metrics.gpus,
        metrics_reason=metrics.reason,
        memory_use=memory,
        memory_lacks=LACKS,
        python_calls_reason=_NO_STACKS,
        payloads=payloads,
        capabilities=capabilities,
        notes=notes,
        recorded=["memory in use (--cuda-memory-usage)"] if source.columns(EVENTS) else [],
    )


def _without_kernels(api: ApiCalls, names: Sequence[str], *, has_table: bool) -> tuple[str, str]:
    """What an export without kernels is told to hold, and the remedy: by its calls."""
    if not len(api):
        said = (
            "(the kernel table is empty)."
            if has_table
            else f"(no {nsys_gpu.KERNEL} table): CUDA was not traced."
        )
        return f"holds no GPU kernels {said}", f"Capture a part of the run with GPU work, with {_CAPTURE}"
    called = [names[i] for i in api.name.tolist()]
    # What is launched into a stream that is captured runs when its graph is launched.
    launch = "GraphLaunch" if any("BeginCapture" in name for name in called) else "Launch"
    if launches := sum(launch in name and "LaunchHostFunc" not in name for name in called):
        said = f"holds no GPU kernels, though calls launch some ({launches:,}): the GPU's records were lost."
        return said, "End the capture before the process exits, with no other profiler in it."
    said = f"holds no GPU kernels: none of its {len(api):,} CUDA calls launches one."
    return said, "Let the captured range (--capture-range, --delay, --duration) span whole steps."


def _is_cpu_run(names: Sequence[str]) -> bool:
    """Whether perfdoc's trainer marked a rank that trains on the CPU, where no kernels are to be expected."""
    marks = (parse_rank_mark(n) for n in names if n.startswith(RANK_MARK))
    return any(mark is not None and mark.device == "cpu" for mark in marks)


_EXPORT_TIMEOUT_S = 3600


def nsys_command() -> str | None:
    """The nsys that reads reports: the one that PERFDOC_NSYS names, else the one on PATH."""
    return os.environ.get(OVERRIDE) or shutil.which("nsys")


def _roomy_folder() -> str | None:
    """Where large temporary files go: /tmp may be memory. None: where all of them go."""
    folders = (os.environ.get("TMPDIR", ""), "/var/tmp")
    return next((f for f in folders if os.path.isdir(f) and os.access(f, os.W_OK)), None)  # noqa: PTH112


def read_nsys_rep(path: Path) -> Trace:
    """Export a `.nsys-rep` to SQLite and read that; the report and its folder are left as they are.

    The nsys is the one that PERFDOC_NSYS names, else the one on PATH.

    Raises TraceError where there is no `nsys`, or where it cannot read the report (a report needs the
    same or a newer nsys than wrote it).
    """
    command = nsys_command()
    export = f"nsys export --type sqlite --lazy=false -o {path.stem}.sqlite {path.name}"
    if command is None:
        raise MissingToolError(
            path,
            "is a Nsight Systems report, and no `nsys` is installed here to export it.",
            f"Where nsys is, run: {export} — then analyse the .sqlite file.",
        )
    with tempfile.TemporaryDirectory(prefix="perfdoc-", dir=_roomy_folder()) as made:
        try:
            target = export_sqlite(
                command, path.resolve(), Path(made) / "export.sqlite", timeout_s=_EXPORT_TIMEOUT_S
            )
            trace = read_nsys_sqlite(target)
        except OSError as error:
            what = f"`nsys export` could not be run: {error.strerror}."
            raise MissingToolError(path, what, f"Try by hand: {export}") from error
        except TraceError as error:
            raise type(error)(path, error.what, error.remedy) from error
    return replace(trace, path=path, format="nsys-rep")
