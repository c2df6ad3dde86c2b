"""GPU metrics that Nsight sampled (`--gpu-metrics-devices`), of the GPUs that kernels ran on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.traces.arrow import distinct
from perfdoc.traces.errors import TraceError
from perfdoc.traces.metric_tables import MetricSamples
from perfdoc.traces.model import UNKNOWN, Device, Note
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints, text_of
from perfdoc.traces.table import I64, Strings
from perfdoc.traces.validate import times_fit

SAMPLES, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
MAX_SAMPLES = 12_000_000
"""Rows of the table that are read, 32 bytes each: at 10 kHz and 30 metrics 40 s of one GPU."""
MAX_METRICS = 10_000
"""Rows of the table of names; a GPU has some 40."""
MAX_NAME = 200
WANTED = re.compile(
    r"(?i)^(SMs? Active|SM Issue|Tensor Active|DRAM (Read|Write)|NVLink (RX|TX)|PCIe (RX|TX)|GPC Clock)\b"
)
"""Nsight's names of what is read (its metric sets of Turing to Hopper); the other metrics are many."""
_GPU_BITS = 0xFF
"""The low byte of a typeId numbers the GPU (Nsight's analysis guide)."""
_MAX_PAIRS = 100_000
"""Of a GPU and a metric."""
_NO_VALUE = -(2**63)
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
        note = Note(
            code="unreadable-table",
            message=f"The table {SAMPLES} is left out: {error.what}",
            remedy="Export the report again.",
        )
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
    texts = source.read(NAMES, ["metricName"])["metricName"].to_pylist()
    named: dict[tuple[int, int], int] = {}
    for kind, metric, text in zip(ids["typeId"].tolist(), ids["metricId"].tolist(), texts, strict=True):
        name = "" if text is None else text_of(text)[:MAX_NAME]
        if WANTED.match(name):
            named.setdefault((kind, metric), strings.intern(name))
    columns = {"timestamp": _NO_VALUE, "typeId": NULL, "metricId": NULL, "value": _NO_VALUE}
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
    cuda = source.columns("TARGET_INFO_CUDA_DEVICE")
    if {"gpuId", "cudaId", "pid"} <= cuda:
        c = read_ints(source, "TARGET_INFO_CUDA_DEVICE", {"gpuId": NULL, "cudaId": NULL, "pid": NULL})
        keys = zip(c["pid"].tolist(), c["cudaId"].tolist(), strict=True)
        known = dict(zip(keys, c["gpuId"].tolist(), strict=True))
        found = [known.get((d.process, d.ordinal), UNKNOWN) for d in devices]
        if UNKNOWN not in found:
            return found
    gpus: I64 = read_ints(source, "TARGET_INFO_GPU", {"id": NULL})["id"]
    only = np.unique(gpus[gpus >= 0]).tolist()
    return [only[0] if len(only) == 1 else UNKNOWN] * len(devices)
