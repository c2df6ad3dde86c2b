"""Real captures with shapes against another tool's figures (../shared/traces/shapes/reference_ops.tsv).

Products and attention agree to the last operation and byte. Of norms the reference counts 6 operations for
each channel, whatever is normalised over, and six vectors as long as the channels, whichever are there; the
differences are worked out here for every row.
"""

from __future__ import annotations

import ast
import csv
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.work.operator_work import KernelWork
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import views_of
from tests.analyzers.shape_plan import work_of

MIB = 2**20


@lru_cache
def measured(path: Path) -> tuple[DeviceView, KernelWork]:
    (view,) = views_of(read_kineto(path), whole=True)
    return view, work_of(view)


def reference(shared: Path) -> list[dict[str, Any]]:
    with (shared / "shapes" / "reference_ops.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


class Calls:
    """What ran inside the calls of one row of the reference."""

    def __init__(self, view: DeviceView, work: KernelWork, row: dict[str, Any], alike: bool = False) -> None:
        trace, operators = view.trace, view.trace.operators
        given = ast.literal_eval(row["input_dims"])
        dims = json.dumps(given, separators=(",", ":"))
        types = json.dumps(ast.literal_eval(row["input_types"]), separators=(",", ":"))
        named = [i for i in range(len(operators)) if trace.strings[operators.name[i]] == row["op"]]
        self.rows = [
            i
            for i in named
            if trace.strings[operators.dims[i]] == dims and trace.strings[operators.dtypes[i]] == types
        ]
        if alike:
            self.rows = [i for i in named if json.loads(trace.strings[operators.dims[i]])[0] == given[0]]
        self.flops, self.bytes, self.kernels_ns, self.sets_ns = [], [], [], []
        launch = view.launches.kernels
        kernel_ns = trace.kernels.end_ns - trace.kernels.start_ns
        copy_ns = trace.copies.end_ns - trace.copies.start_ns
        for i in self.rows:
            start, end, thread = operators.start_ns[i], operators.end_ns[i], operators.thread[i]

            def inside(
                api: np.ndarray, start: int = start, end: int = end, thread: int = thread
            ) -> np.ndarray:
                time, on = trace.api_calls.start_ns[api], trace.api_calls.thread[api]
                return (api >= 0) & (time >= start) & (time < end) & (on == thread)

            mine = inside(launch)
            self.flops.append(round(float(np.nansum(work.flops[mine]))))
            self.bytes.append(round(float(np.nansum(work.bytes[mine]))))
            self.kernels_ns.append(int(kernel_ns[mine].sum()))
            self.sets_ns.append(int(copy_ns[inside(view.launches.copies)].sum()))


def rows_of(shared: Path, table: str) -> list[tuple[dict[str, Any], Calls]]:
    found = []
    for row in reference(shared):
        if row["table"] == table:
            view, work = measured(shared / "shapes" / f"{row['trace']}.json.gz")
            found.append((row, Calls(view, work, row)))
    return found


@pytest.mark.parametrize(("table", "rows"), [("GEMM", 9), ("SDPA_fwd", 2)])
def test_products_and_attention_agree(shared_traces: Path, table: str, rows: int) -> None:
    """The reference's mean is that of the calls' rates, with a memset of the call in its time."""
    compared = rows_of(shared_traces, table)
    assert len(compared) == rows
    for row, calls in compared:
        assert len(calls.rows) == int(row["calls"])
        assert set(calls.flops) == {round(float(row["gflop_per_call"]) * 1e9)}
        assert set(calls.bytes) == {float(row["mb_per_call"]) * MIB}
        time = np.array(calls.kernels_ns) + np.array(calls.sets_ns)
        assert time.sum() / 1000 == pytest.approx(float(row["kernel_time_us_sum"]), rel=1e-5)
        rate = np.mean(np.array(calls.flops) / time) / 1000
        assert rate == pytest.approx(float(row["tflops_mean"]), rel=0.01)
        assert np.mean(np.array(calls.bytes) / time) / 1000 == pytest.approx(
            float(row["tbps_mean"]), rel=0.01
        )


FP32 = 4
NORM_DIFFERENCES = [
    # operator, first axes of x, whether it has weights: operations and bytes more than the reference's
    ("layer_norm", (1, 141), True, 6 * (141 - 512), -4 * 512 * 2),
    ("native_layer_norm", (1, 141), True, 6 * (141 - 512), -4 * 512 * 2),
    ("layer_norm", (8, 16), True, 6 * (8 - 16384), -4 * 16384 * FP32),
    ("native_layer_norm", (8, 16), True, 6 * (8 - 16384), -4 * 16384 * FP32),
    ("group_norm", (8, 16), True, 6 * (8 * 4 - 16), -4 * 16 * FP32),
    ("native_group_norm", (8, 16), True, 6 * (8 * 4 - 16), -4 * 16 * FP32),
    # A batch norm over 8 x 16 channels, whose two weights are repeated: 16 read, 128 written, 128 read.
    ("instance_norm", (8, 16), True, 6 * (128 - 16), (2 * (16 + 128 + 128) - 6 * 16) * FP32),
    ("batch_norm", (8, 16), True, 0, 0),
    ("miopen_batch_norm", (8, 16), True, 0, 0),
    ("_fused_rms_norm", (8, 16), True, 0, 0),
    ("_fused_rms_norm_backward", (8, 16), True, 0, 0),
    # Running statistics without weights, weights without running statistics, neither.
    ("native_batch_norm", (8, 16), False, 0, -2 * 16 * FP32),
    ("batch_norm", (1, 128), True, 0, -4 * 128 * FP32),
    ("miopen_batch_norm", (1, 128), True, 0, -4 * 128 * FP32),
    ("native_batch_norm", (1, 128), False, 0, -6 * 128 * FP32),
    # The gradient does not read the bias; where there are no weights the reference counts some all the same.
    ("native_layer_norm_backward", (8, 16), True, 0, -16384 * FP32),
    ("native_layer_norm_backward", (8, 16), False, 0, -16384 * FP32),
    ("_fused_rms_norm_backward", (8, 16), False, 0, -2 * 1024 * FP32),
    ("native_group_norm_backward", (8, 16), True, 0, 2 * 16 * FP32),
    ("native_group_norm_backward", (8, 16), False, 0, -16 * FP32),
    ("native_batch_norm_backward", (8, 16), False, 0, -4 * 16 * FP32),
    ("native_batch_norm_backward", (1, 128), False, 0, -4 * 128 * FP32),
    # AMD's library does the same work as PyTorch's kernel: 9 operations an element, and x is read.
    ("miopen_batch_norm_backward", (8, 16), True, 5 * 131072 - 48, (131072 + 32) * FP32),
    ("miopen_batch_norm_backward", (1, 128), True, 5 * 131072 - 384, (131072 + 256) * FP32),
]
WEIGHTS = {
    **{"native_layer_norm_backward": 5, "_fused_rms_norm_backward": 4, "native_group_norm_backward": 4},
    **dict.fromkeys(("group_norm", "layer_norm", "native_layer_norm", "_fused_rms_norm"), 2),
    **dict.fromkeys(("miopen_batch_norm_backward", "native_batch_norm_backward"), 2),
}
"""Where the weights stand among the inputs; second for all others."""


def test_norms_differ_by_what_the_reference_does_not_look_at(shared_traces: Path) -> None:
    differences = {case[:3]: case[3:] for case in NORM_DIFFERENCES}
    seen = set()
    for row, calls in rows_of(shared_traces, "Normalization"):
        dims = ast.literal_eval(row["input_dims"])
        name = row["op"].removeprefix("aten::")
        key = (name, tuple(dims[0][:2]), dims[WEIGHTS.get(name, 1)] != [])
        seen.add(key)
        flops, moved = differences[key]
        assert set(calls.flops) == {round(float(row["gflop_per_call"]) * 1e9) + flops}, key
        assert set(calls.bytes) == {round(float(row["mb_per_call"]) * MIB) + moved}, key
        if len(calls.rows) < int(row["calls"]):  # those without weights are in the same row
            view, work = measured(shared_traces / "shapes" / f"{row['trace']}.json.gz")
            calls = Calls(view, work, row, alike=True)
        assert len(calls.rows) == int(row["calls"])
        assert sum(calls.kernels_ns) / 1000 == pytest.approx(float(row["kernel_time_us_sum"]), rel=1e-4)
    assert seen == set(differences)
