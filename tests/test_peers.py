"""benchmarks/peers.py: its exact counts, its own files and its table, all worked out by hand."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from perfdoc.traces.load import read_trace
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline, one_gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from peers_exact import GAP_NS, Row, counted, hta_population, kineto_rows, nsys_rows, stream_gaps
from peers_files import as_kineto
from peers_table import Answered, tool_cells

GEMM, ADD = "gemm", "add"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
US = 1000


def laid() -> Timeline:
    """Two steps on one device; all lengths in µs, the second step's launches begin at 300.

    compute [100, 200), [380, 400); all-reduce [150, 250), [240, 260); copy [270, 290).
    """
    builder, thread, device = one_gpu(pid=7, rank=0)
    thread.range("step 0", 0, 300 * US)
    thread.range("step 1", 300 * US, 410 * US)
    device.kernel(GEMM, 100 * US, 200 * US, launch=(thread, 10 * US, 11 * US))
    device.kernel(REDUCE, 150 * US, 250 * US, stream=20, launch=(thread, 12 * US, 13 * US))
    device.kernel(REDUCE, 240 * US, 260 * US, stream=21, launch=(thread, 14 * US, 15 * US))
    device.copy("host_to_device", 4096, 270 * US, 290 * US, launch=(thread, 16 * US, 17 * US))
    device.kernel(ADD, 380 * US, 400 * US, launch=(thread, 310 * US, 311 * US))
    return builder.build()


def counts(rows: list[Row]) -> dict[str, Any]:
    return counted(rows, lambda row: "nccl" in row.name, GAP_NS)


def test_kernels_of_an_nsys_export(tmp_path: Path) -> None:
    found = counts(list(nsys_rows(write_nsys_sqlite(laid(), tmp_path / "x.sqlite"), 3)))
    # Busy [100, 260) and [380, 400), communication [150, 260), under compute until 200.
    assert found["devices"] == {
        "3/0": {
            "busy_ns": 180 * US,
            "comm_ns": 110 * US,
            "hidden_ns": 50 * US,
            "exposed_ns": 60 * US,
            "idle_ns": 120 * US,
        }
    }
    assert found["short_totals"] == {REDUCE: 120 * US, GEMM: 100 * US, ADD: 20 * US}
    assert list(found["short_totals"]) == [REDUCE, GEMM, ADD]


def test_gaps_of_streams() -> None:
    """Stream 7 waits 180 µs between its kernels; no other stream has two."""
    rows = [
        Row(
            key="0",
            stream=(0, stream),
            start_ns=a * US,
            end_ns=b * US,
            name="",
            short="",
            kernel=True,
            correlation=a,
        )
        for stream, a, b in ((7, 100, 200), (20, 150, 250), (7, 380, 400))
    ]
    assert stream_gaps(rows, None) == 180 * US
    assert stream_gaps(rows, 179 * US) == 180 * US
    assert stream_gaps(rows, 180 * US) == 0


def test_both_formats_hold_the_same_kernels(tmp_path: Path) -> None:
    path = write_nsys_sqlite(laid(), tmp_path / "x.sqlite")
    [made] = as_kineto(path, tmp_path / "made", 0, 1)
    rows, calls, fractions = kineto_rows(made, 0)
    assert not fractions
    assert [c.name for c in calls if "Profiler" in c.name] == ["ProfilerStep#0", "ProfilerStep#1"]
    kernels = [row for row in rows if row.kernel]
    [of_nsys] = counts(list(nsys_rows(path, 0)))["devices"].values()
    assert counts(kernels)["devices"] == {"0": of_nsys}
    read, other = read_trace(path).kernels, read_trace(made).kernels
    assert (read.end_ns - read.start_ns).tolist() == (other.end_ns - other.start_ns).tolist()


def test_what_hta_counts(tmp_path: Path) -> None:
    """Copies too, and nothing that the last step launched unless it is asked for."""
    [made] = as_kineto(write_nsys_sqlite(laid(), tmp_path / "x.sqlite"), tmp_path / "made", 0, 1)
    file = kineto_rows(made, 0)
    first = counts(list(hta_population([file], last_step=False)))["devices"]["0"]
    both = counts(list(hta_population([file], last_step=True)))["devices"]["0"]
    assert (first["busy_ns"], first["idle_ns"]) == (180 * US, 10 * US)
    assert (both["busy_ns"], both["idle_ns"]) == (200 * US, 100 * US)
    assert first["exposed_ns"] == both["exposed_ns"] == 60 * US


def test_fractions_of_a_microsecond_are_rounded_inward(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": GEMM, "ts": 10.2, "dur": 3.5, "args": {"stream": 7}}
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [kernel]}).encode()))
    file = kineto_rows(path, 0)
    [row] = hta_population([file], last_step=False)
    assert (row.start_ns, row.end_ns) == (11_000, 13_000)
    assert (file[0][0].start_ns, file[0][0].end_ns) == (10_200, 13_700)


def answered(**answers: Any) -> Answered:
    return Answered(label="it", wall_s=1, cpu_s=2, peak_mb=3, error="", answers=answers, own="")


def test_the_table_says_how_far_off_an_answer_is(tmp_path: Path) -> None:
    """0.5 ms too much on one device and 0.5 too little on another are 1 ms, not 0."""
    device = {"busy_ns": 2e6, "exposed_ns": 1e6, "idle_ns": 0, "comm_ns": 2e6, "hidden_ns": 1e6}
    exact = {
        "devices": {"0/0": device, "0/1": device},
        "totals": {"gemm(int)": 9e6},
        "short_totals": {GEMM: 8e6, ADD: 1e6},
        "stream_idle_ns": {"0/0": 0, "0/1": 0},
    }
    given = {"exposed_ns": 1e6, "idle_ns": 0, "hidden_frac": 0.5}
    off = {"0/0": {**given, "busy_ns": 2.5e6}, "0/1": {**given, "busy_ns": 1.5e6, "hidden_frac": 0.25}}
    cells = tool_cells(answered(devices=off, top=[(GEMM, 8e6)]), {"kernels": exact})
    assert cells[4:] == ("4.00 (1.00)", "2.00 (0)", "0.00 (0)", "37.50 (25.00)", "8.00 (1.00)", "-")
    # A device that is left out is off by all it has.
    cells = tool_cells(answered(devices={"0/0": off["0/0"]}, top=[]), {"kernels": exact})
    assert cells[4] == "2.50 (2.50)"


def test_a_tool_that_fails_says_why() -> None:
    failed = Answered(label="it", wall_s=1, cpu_s=2, peak_mb=3, error="KeyError", answers=None, own="")
    assert tool_cells(failed, {"kernels": {}})[4] == "fails: KeyError"
