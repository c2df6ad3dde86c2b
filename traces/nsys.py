"""Nsight Systems exports, from either container, as a Trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfdoc.profiling.marks import parse_rank_mark
from perfdoc.profiling.vocabulary import RANK_MARK
from perfdoc.traces import nsys_gpu, nsys_host
from perfdoc.traces.errors import NoGpuActivityError, TraceError
from perfdoc.traces.model import Capability, Note, Trace
from perfdoc.traces.nsys_ids import Ids
from perfdoc.traces.nsys_launches import any_launch_found
from perfdoc.traces.nsys_meta import find_secrets, identify_gpus, read_meta, read_warnings
from perfdoc.traces.nsys_payload import PAYLOAD_COLUMNS, read_payloads
from perfdoc.traces.nsys_source import NsysSource, ParquetSource, SqliteSource
from perfdoc.traces.validate import check_activity, host_rows_that_fit, left_out_note

_CAPTURE = "nsys profile --trace=cuda,nvtx …"


def read_nsys_sqlite(path: Path) -> Trace:
    """A file of `nsys export --type sqlite`. Raises TraceError where it is not one."""
    return _read_and_close(SqliteSource(path))


def read_nsys_parquet(path: Path) -> Trace:
    """A folder of `nsys export --type parquetdir`. Raises TraceError where it is not one."""
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
    if not meta.is_nsight and not has_kernels and not has_graphs:
        raise TraceError(
            source.path,
            "is not a Nsight Systems export (none of its tables is there).",
            "Export the report: nsys export --type sqlite REPORT.nsys-rep",
        )
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
    check_activity(source.path, kernels, copies, graphs)
    api, bad_calls = host_rows_that_fit(nsys_host.read_api_calls(source, ids))
    capture_end = max(int(t.end_ns.max(initial=0)) for t in (kernels, copies, graphs, api))
    nvtx = nsys_host.read_ranges(source, ids, capture_end)
    if not len(kernels) and not len(graphs) and not _is_cpu_run(ids.strings.values):
        raise NoGpuActivityError(
            source.path,
            "holds no GPU kernels (the kernel table is empty)."
            if has_kernels
            else "holds no GPU kernels (no CUPTI_ACTIVITY_KIND_KERNEL table): CUDA was not traced.",
            f"Capture a stretch in which the GPU works, with {_CAPTURE}",
        )
    records = nsys_host.read_event_records(source, ids)
    syncs, bad_syncs = host_rows_that_fit(nsys_host.read_syncs(source))
    payloads = read_payloads(source, nvtx.ranges, nvtx.source_row, ids.strings)
    ids.name_threads()
    devices = identify_gpus(source, ids.devices)

    notes = read_warnings(source) + find_secrets(source)
    notes += left_out_note(bad_calls + bad_syncs + nvtx.impossible_times)
    if nvtx.open_ranges:
        notes.append(
            Note(
                code="open-ranges",
                message=f"{nvtx.open_ranges:,} NVTX ranges never close; each counts to the capture's end.",
                remedy="Close every range, or end the capture outside of them.",
            )
        )
    if nvtx.bad_rows:
        notes.append(
            Note(code="bad-ranges", message=f"{nvtx.bad_rows:,} NVTX ranges end before they start; left out.")
        )
    if ids.missing_names:
        notes.append(
            Note(code="missing-names", message=f"{ids.missing_names:,} names are missing from StringIds.")
        )
    in_graphs = int(np.count_nonzero(kernels.graph_node >= 0))
    capabilities = {
        "kernels": _have(len(kernels) > 0, "only whole CUDA graphs were traced", "--cuda-graph-trace=node"),
        # Kernels prove that the GPU was traced: no copies beside them is a measurement of none.
        "copies": _have(
            len(copies) > 0 or len(kernels) > 0, "no memory copy or set in the capture", "--trace=cuda"
        ),
        "graph_nodes": _have(
            len(graphs) == 0,
            "CUDA graphs were traced as a whole: their kernels, and any communication among them, are unseen",
            "nsys profile --cuda-graph-trace=node …",
        ),
        "api_calls": _have(len(api) > 0, "no CUDA API rows", "nsys profile --trace=cuda …"),
        "launch_correlation": _have(
            any_launch_found(api, ids, (kernels, graphs, copies)),
            "launches cannot be told: no CUDA API row has the correlation id of any GPU activity",
            "nsys profile --trace=cuda …",
        ),
        "ranges": _have(
            len(nvtx.ranges) > 0, "no NVTX ranges", "annotate steps (torch.cuda.nvtx) and --trace=cuda,nvtx"
        ),
        "event_edges": _have(
            len(records) > 0 and bool((syncs.kind == 2).any()),
            "no event records and stream waits: what compute waited for cannot be proved",
            "nsys profile --cuda-event-trace=true …",
        ),
        "collective_payloads": _have(
            len(payloads) > 0,
            "no NCCL payloads: communicators and message sizes are unknown",
            "NCCL 2.25 or later, and export with nsys 2026 (jsonText) or --include-blobs=true",
        ),
        "group_descriptions": _have(
            False,
            "Nsight captures hold no process-group descriptions",
            "PyTorch profiler traces hold them (PyTorch 2.4 and later)",
        ),
        "gpu_identity": _have(
            any(d.gpu_name for d in devices),
            "the export names no GPU for the devices",
            "a whole export (nsys export --type sqlite) by nsys 2022 or later",
        ),
        "utc_clock": _have(
            meta.utc_origin_ns is not None, "no UTC start time in the export", "nsys 2022 or later"
        ),
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
        utc_origin_ns=meta.utc_origin_ns,
        devices=devices,
        threads=ids.threads,
        strings=ids.strings.values,
        kernels=kernels,
        copies=copies,
        graph_launches=graphs,
        api_calls=api,
        syncs=syncs,
        event_records=records,
        ranges=nvtx.ranges,
        payloads=payloads,
        capabilities=capabilities,
        notes=notes,
    )


def _is_cpu_run(names: Sequence[str]) -> bool:
    """Whether perfdoc's trainer marked a rank that trains on the CPU, where no kernels are to be expected."""
    marks = (parse_rank_mark(n) for n in names if n.startswith(RANK_MARK))
    return any(mark is not None and mark.device == "cpu" for mark in marks)


def _have(available: bool, reason: str, remedy: str) -> Capability:
    return (
        Capability(available=True) if available else Capability(available=False, reason=reason, remedy=remedy)
    )
