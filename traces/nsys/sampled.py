"""What Nsight sampled beside the CUDA activity: threads' scheduling, calls into the OS runtime, GPU metrics.

Of no thread but those that the capture knows from CUDA calls and ranges, and of no GPU but those that kernels
ran on: a system-wide trace has thousands. What cannot be read is left out with a note: no figure rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import UNKNOWN, Device, Note
from perfdoc.traces.more_tables import MetricSamples, OsCalls, ThreadStates
from perfdoc.traces.nsys.ids import Ids
from perfdoc.traces.nsys.meta import gpu_ids
from perfdoc.traces.nsys.source import NO_TIME, NULL, NsysSource, read_ints, text_of
from perfdoc.traces.table import I64, Strings, distinct
from perfdoc.traces.validate import times_fit

SAMPLES, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
MAX_SAMPLES = 12_000_000
"""Rows of the table that are read, 32 bytes each: at 10 kHz and 30 metrics 40 s of one GPU."""
MAX_METRICS = 10_000
"""Rows of the table of names; a GPU has some 40."""
MAX_NAME = 200
WANTED = (
    r"(?i)^(SMs? Active|SM Issue|Tensor Active|DRAM (Read|Write)|NVLink (RX|TX)|PCIe (RX|TX)|GPC Clock)\b"
)
"""Nsight's names of what is read (its metric sets of Turing to Hopper); the other metrics are many."""
_GPU_BITS = 0xFF
"""The low byte of a typeId numbers the GPU (Nsight's analysis guide)."""
_MAX_PAIRS = 100_000
"""Of a GPU and a metric."""
_LARGEST = 2**53
_REMEDY = "nsys profile --gpu-metrics-devices=all …"


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The samples, and whose they are."""

    samples: MetricSamples
    gpus: Sequence[int]
    """By device, the `gpu` of its samples; -1 none."""
    reason: str
    """Why there are none, where there are none."""
    notes: Sequence[Note] = ()


def read_metrics(source: NsysSource, devices: Sequence[Device], strings: Strings) -> Metrics:
    """The samples that are wanted. What cannot be read is left out with a note: no other figure rests on
    it."""
    if (
        not {"timestamp", "typeId", "metricId", "value"} <= source.columns(SAMPLES)
        or not {"typeId", "metricId", "metricName"} <= source.columns(NAMES)
        or not source.count(SAMPLES)
    ):
        return _none(devices, f"no GPU metrics were sampled ({_REMEDY})")
    rows = source.count(SAMPLES)
    if rows > MAX_SAMPLES or source.count(NAMES) > MAX_METRICS:
        return _none(
            devices,
            f"{rows:,} samples of GPU metrics are more than are read ({MAX_SAMPLES:,}): sample less often "
            "(--gpu-metrics-frequency) or for less time",
        )
    try:
        samples = _samples(source, strings)
    except TraceError as error:
        note = _unreadable(SAMPLES, error)
        return Metrics(**{**vars(_none(devices, "the table of GPU metrics cannot be read")), "notes": [note]})
    sampled = set(np.unique(samples.gpu).tolist())
    gpus = [gpu if gpu in sampled else UNKNOWN for gpu in _gpus_of(source, devices)]
    reason = ""
    if UNKNOWN in gpus or not gpus:
        reason = (
            "none of the metrics that were sampled is one that is looked at"
            if not sampled
            else "which of the sampled GPUs is this one is not known, or it was not sampled"
        )
    return Metrics(samples=samples, gpus=gpus, reason=reason)


def _none(devices: Sequence[Device], reason: str) -> Metrics:
    return Metrics(samples=MetricSamples.empty(), gpus=[UNKNOWN] * len(devices), reason=reason)


def _samples(source: NsysSource, strings: Strings) -> MetricSamples:
    ids = read_ints(source, NAMES, {"typeId": NULL, "metricId": NULL})
    texts = source.read(NAMES, ["metricName"])["metricName"].to_list()
    named: dict[tuple[int, int], int] = {}
    for kind, metric, text in zip(ids["typeId"].tolist(), ids["metricId"].tolist(), texts, strict=True):
        name = "" if text is None else text_of(text)[:MAX_NAME]
        if re.match(WANTED, name):
            named.setdefault((kind, metric), strings.intern(name))
    columns = {"timestamp": NO_TIME, "typeId": NULL, "metricId": NULL, "value": NO_TIME}
    c = read_ints(source, SAMPLES, columns)
    kinds, kind = distinct(c["typeId"])
    metrics, metric = distinct(c["metricId"])
    pairs, pair = distinct(kind * max(len(metrics), 1) + metric)
    if len(pairs) > _MAX_PAIRS:
        return MetricSamples.empty()
    of_pair = np.array(
        [
            named.get((int(kinds[p // len(metrics)]), int(metrics[p % len(metrics)])), UNKNOWN)
            for p in pairs.tolist()
        ],
        np.int64,
    )
    of_row = of_pair[pair] if len(of_pair) else pair
    time, value = c["timestamp"], c["value"]
    kept = np.flatnonzero((of_row >= 0) & times_fit(time, time) & (np.abs(value) < _LARGEST) & (value >= 0))
    gpu = c["typeId"][kept] & _GPU_BITS
    order = np.lexsort((time[kept], of_row[kept], gpu))
    return MetricSamples(
        time_ns=time[kept][order],
        gpu=gpu[order].astype(np.int32),
        metric=of_row[kept][order].astype(np.int32),
        value=value[kept][order],
    )


def _gpus_of(source: NsysSource, devices: Sequence[Device]) -> list[int]:
    """Nsight's number of the GPU of each device; -1 where the export does not tell: with
    CUDA_VISIBLE_DEVICES the CUDA ordinal is another number."""
    known = gpu_ids(source)
    found = [known.get((d.process, d.ordinal), UNKNOWN) for d in devices]
    if UNKNOWN not in found:
        return found
    gpus: I64 = read_ints(source, "TARGET_INFO_GPU", {"id": NULL})["id"]
    only = np.unique(gpus[gpus >= 0]).tolist()
    return [only[0] if len(only) == 1 else UNKNOWN] * len(devices)


SCHEDULING = "SCHED_EVENTS"
OS_CALLS = "OSRT_API"
MPI_CALLS = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")


def read_scheduling(source: NsysSource, ids: Ids) -> tuple[ThreadStates, OsCalls, list[Note]]:
    """Both tables, and calls of MPI, in which a host waits alike, as far as they are there. To be called once
    all other threads are known."""
    states, calls, notes = ThreadStates.empty(), [], []
    try:
        states = _thread_states(source, ids)
    except TraceError as error:
        notes.append(_unreadable(SCHEDULING, error))
    for table in (OS_CALLS, *MPI_CALLS):
        try:
            calls.append(_calls(source, ids, table))
        except TraceError as error:
            notes.append(_unreadable(table, error))
    found = OsCalls.joined(calls)
    return states, found.take(np.lexsort((found.start_ns, found.thread))), notes


def _unreadable(table: str, error: TraceError) -> Note:
    return Note(
        code="unreadable-table",
        message=f"The table {table} is left out: {error.what}",
        remedy="Export the report again.",
    )


def _thread_states(source: NsysSource, ids: Ids) -> ThreadStates:
    """Each event begins a stretch, which the thread's next one ends.

    Two events of one kind in a row mean that one is lost: the state between them is unknown. Before its first
    event a thread was in the other state, after its last one it stays; as far as any thread has events.
    """
    c = read_ints(source, SCHEDULING, {"start": NO_TIME, "isSchedIn": NULL, "globalTid": NULL})
    time, came_in = c["start"], c["isSchedIn"]
    kept = times_fit(time, time) & (came_in != NULL)
    if not kept.any():
        return ThreadStates.empty()
    first, last = int(time[kept].min()), int(time[kept].max())
    rows = np.flatnonzero(kept & ids.known_threads(c["globalTid"]))
    thread = ids.threads_of(c["globalTid"][rows]).astype(np.int64)
    order = np.lexsort((time[rows], thread))
    time, on_cpu, thread = time[rows[order]], came_in[rows[order]] != 0, thread[order]
    if not len(time):
        return ThreadStates.empty()
    same = thread[1:] == thread[:-1]
    between = np.flatnonzero(same & (on_cpu[1:] != on_cpu[:-1]))
    heads = np.flatnonzero(np.append(True, ~same))
    tails = np.append(heads[1:], len(time)) - 1
    begin = np.concatenate((np.full(len(heads), first), time[between], time[tails]))
    end = np.concatenate((time[heads], time[between + 1], np.full(len(tails), last)))
    of = np.concatenate((thread[heads], thread[between], thread[tails]))
    state = np.concatenate((~on_cpu[heads], on_cpu[between], on_cpu[tails]))
    order = np.lexsort((begin, of))
    order = order[end[order] > begin[order]]
    return ThreadStates(
        start_ns=begin[order], end_ns=end[order], thread=of[order].astype(np.int32), on_cpu=state[order]
    )


def _calls(source: NsysSource, ids: Ids, table: str) -> OsCalls:
    named = "nameId" if table == OS_CALLS else "textId"
    c = read_ints(source, table, {"start": NO_TIME, "end": NO_TIME, "globalTid": NULL, named: NULL})
    kept = times_fit(c["start"], c["end"]) & (c["end"] > c["start"])
    rows: I64 = np.flatnonzero(kept & ids.known_threads(c["globalTid"]))
    return OsCalls(
        start_ns=c["start"][rows],
        end_ns=c["end"][rows],
        thread=ids.threads_of(c["globalTid"][rows]),
        name=ids.names_of(c[named][rows]),
    )
