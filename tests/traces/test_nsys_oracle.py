"""Kernels and ranges as read, held against `nsys stats` of an installed Nsight Systems."""

from __future__ import annotations

import csv
import io
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from perfdoc.profiling.nsys.command import Nsys, find_nsys
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.load import read_trace
from tests.amount import some

STYLES = {RangeKind.PUSH_POP: "PushPop", RangeKind.START_END: "StartEnd"}


@pytest.fixture(scope="module")
def nsys() -> Nsys:
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    line = [str(found.path), "stats", "--help-reports"]
    known = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if " nvtx_sum " not in known.stdout:
        pytest.skip(f"{found.label} names its reports otherwise: no nvtx_sum (2022.4 has nvtxsum)")
    return found


def as_nsys_says(nsys: Nsys, capture: Path, report: str, *by: str) -> dict[tuple[str, ...], tuple[int, int]]:
    """Count and total in ns of each row of a report. nsys opens a link: what it writes stays beside that."""
    line = [nsys.path, "stats", "--report", report, "--format", "csv", "--output", "-", capture]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, timeout=300, check=True)
    table = done.stdout[done.stdout.index("Time (%)") :]
    rows = csv.DictReader(io.StringIO(table))
    return {
        tuple(r[b] for b in by): (int(r["Instances"]), int(r["Total Time (ns)"])) for r in rows if r[by[0]]
    }


def totals(names: Iterable[tuple[str, ...]], durations: np.ndarray) -> dict[tuple[str, ...], tuple[int, int]]:
    """Count and sum of durations by name."""
    count: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    for name, duration in zip(names, durations.tolist(), strict=True):
        count[name] += 1
        total[name] += duration
    return {name: (count[name], total[name]) for name in count}


def kernels_of(trace: Trace) -> dict[tuple[str, ...], tuple[int, int]]:
    kernels = trace.kernels
    return totals(((trace.strings[i],) for i in kernels.full_name), kernels.end_ns - kernels.start_ns)


def ranges_of(trace: Trace) -> dict[tuple[str, ...], tuple[int, int]]:
    """By `domain:name` and style. A range that never closed is left out: Nsight ends it elsewhere."""
    ranges = trace.ranges
    rows = np.flatnonzero(np.isin(ranges.kind, list(STYLES)) & ~ranges.never_closed)
    domain = [trace.strings[i] if i >= 0 else "" for i in ranges.domain[rows]]
    labels = [f"{d}:{trace.strings[i]}" for d, i in zip(domain, ranges.name[rows], strict=True)]
    styles = [STYLES[RangeKind(k)] for k in ranges.kind[rows]]
    return totals(zip(labels, styles, strict=True), ranges.end_ns[rows] - ranges.start_ns[rows])


@pytest.mark.parametrize(
    "name",
    some(
        ["ddp_2gpu_rtx3090", "sp_2gpu_before", "gpt_fwd_bwd_rtx3070ti_sched", "windows_rtx5000"],
        ["ddp_2gpu_rtx3090"],
    ),
)
def test_counts_and_totals_of_real_captures_agree(
    nsys: Nsys, shared_traces: Path, tmp_path: Path, name: str
) -> None:
    link = tmp_path / "capture.sqlite"
    link.symlink_to((shared_traces / "nsys" / f"{name}.sqlite").resolve())
    trace = read_trace(link)
    kernels = as_nsys_says(nsys, link, "cuda_gpu_kern_sum", "Name")
    assert len(kernels) > 10
    assert kernels_of(trace) == kernels
    ranges = as_nsys_says(nsys, link, "nvtx_sum", "Range", "Style")
    ours = {(label.removeprefix(":"), style): v for (label, style), v in ranges_of(trace).items()}
    assert len(ranges) > 2
    # Names that a program gave to both a domain and none cannot be told apart in Nsight's table.
    assert {key: ours.get((key[0].removeprefix(":"), key[1])) for key in ranges} == ranges
