"""Which rank a process is, and what reports call it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.profiling import vocabulary
from perfdoc.profiling.marks import RankMark, parse_rank_mark
from perfdoc.results.names import shorten
from perfdoc.traces import Device, Trace


def marked_ranks(trace: Trace) -> dict[int, RankMark]:
    """Rank mark by process; the first one of a process counts."""
    found: dict[int, RankMark] = {}
    marks = {
        i: mark
        for i in trace.range_names_like(lambda name: name.startswith(vocabulary.RANK_MARK))
        if (mark := parse_rank_mark(trace.strings[i])) is not None
    }
    for name, mark in marks.items():
        for thread in np.unique(trace.ranges.thread[trace.ranges.name == name]).tolist():
            if thread >= 0:
                found.setdefault(trace.threads[thread].process, mark)
    return found


def with_marked_ranks(trace: Trace, marks: Mapping[int, RankMark]) -> Trace:
    """The trace with ranks from marks, and with a device for each process that is marked as a CPU rank."""
    if not marks:
        return trace
    devices = [
        replace(d, rank=marks[d.process].rank, rank_evidence="mark")
        if d.rank is None and d.process in marks
        else d
        for d in trace.devices
    ]
    known = {d.process for d in devices}
    devices += [
        Device(process=process, ordinal=0, gpu_name="CPU", rank=mark.rank, rank_evidence="mark")
        for process, mark in sorted(marks.items())
        if mark.device == "cpu" and process not in known
    ]
    return replace(trace, devices=devices)


_MOST_PIDS = 1 << 22
"""Of Linux: a process of a merged file has a larger number, which is none of the system's."""


def _label(device: Device, *, pid: bool) -> str:
    if device.rank is not None:
        return f"rank {device.rank}"
    return f"GPU {device.ordinal}" + (f", pid {device.process}" if pid else "")


def rank_labels(devices: Sequence[tuple[int, Device]]) -> list[str]:
    """Labels for (index of the input, device), in order: `rank 3`, or `GPU 0, pid 144` where the capture does
    not say the rank; with more of what tells them apart where two would be the same."""
    merged = any(device.process > _MOST_PIDS for _, device in devices)
    labels = [_label(device, pid=device.process >= 0 and not merged) for _, device in devices]
    details = [
        [f", GPU {d.ordinal}" for _, d in devices],
        [f", pid {d.process}" for _, d in devices],
        [f", {shorten(d.host, 48)}" if d.host else "" for _, d in devices],
        [f", input {i}" for i, _ in devices],
        [f", device {n}" for n in range(len(devices))],
    ]
    for extra in details:
        seen = Counter(labels)
        labels = [
            label + detail if seen[label] > 1 and f"{detail}," not in f", {label}," else label
            for label, detail in zip(labels, extra, strict=True)
        ]
    return labels
