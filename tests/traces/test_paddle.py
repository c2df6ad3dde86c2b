"""Traces of PaddlePaddle's profiler: Kineto's form with names, categories and keys of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.traces.kineto.read import read_kineto

PID = 3000
EPOCH_US = 1_700_000_000_000_000


def event(cat: str, name: str, tid: str | int, at_us: int, dur_us: float, **args: Any) -> dict[str, Any]:
    """As chrometracing_logger.cc writes it: the length behind the name, in ms above one, and whole
    microseconds since 1970."""
    shown = f"{dur_us / 1000:.3f} ms" if dur_us > 1000 else f"{dur_us:.3f} us"
    return {
        "name": f"{name}[{shown}]",
        "pid": PID if isinstance(tid, str) else 0,
        "tid": tid,
        "ts": EPOCH_US + at_us,
        "dur": dur_us,
        "ph": "X",
        "cat": cat,
        "cname": "rail_animation",
        "args": {"start_time": f"{at_us:.3f} us", "end_time": f"{at_us + dur_us:.3f} us", **args},
    }


def steps(count: int) -> list[dict[str, Any]]:
    """Each of 1,000 us: the host loads for 300, launches a kernel of 400, and a copy of 50 behind it."""
    made = []
    for i in range(count):
        at, ids = 1_000 * i, (2 * i + 1, 2 * i + 2)
        made += [
            event("ProfileStep", f"ProfileStep#{i}", "11(Python)", at, 1_000),
            event("Dataloader", "_DataLoaderIterMultiProcess", "11(Python)", at + 5, 300),
            event("CudaRuntime", "cudaLaunchKernel", "11(C++)", at + 310, 5, **{"correlation id": ids[0]}),
            event("CudaRuntime", "cudaMemcpyAsync", "11(C++)", at + 320, 5, **{"correlation id": ids[1]}),
            event(
                "Kernel",
                "void phi::funcs::VectorizedBroadcastKernel<float>(float)",
                *(7, at + 330, 400),
                **{
                    "device": 0,
                    "stream": 7,
                    "correlation id": ids[0],
                    "grid": [4, 1, 1],
                    "block": [128, 1, 1],
                },
            ),
            event("Memcpy", "MEMCPY_DtoH", 7, at + 740, 50, **{"stream": 7, "correlation id": ids[1]}),
        ]
    return made


def allocations(count: int) -> list[dict[str, Any]]:
    args = {"place": "Place(gpu:0)", "addr": "1", "increase_bytes": 512, "current_allocated": "512"}
    one = {"name": "[memory]", "pid": PID, "tid": "11(C++)", "ph": "i", "cat": "Allocate", "args": args}
    return [{**one, "ts": EPOCH_US + i} for i in range(count)]


def written(path: Path, count: int, before: Sequence[dict[str, Any]] = ()) -> Path:
    head = {"schemaVersion": "1.0.0", "displayTimeUnit": "ms", "span_indx": "0"}
    path.write_text(json.dumps({**head, "traceEvents": [*before, *steps(count), {}]}, indent=1))
    return path


def test_its_rows_are_those_of_any_capture(tmp_path: Path) -> None:
    trace = read_kineto(written(tmp_path / "host_pid_3000.paddle_trace.json", 2))
    assert (len(trace.kernels), len(trace.copies), len(trace.api_calls), len(trace.ranges)) == (2, 2, 4, 4)
    assert (
        trace.names(trace.kernels.full_name)
        == ["void phi::funcs::VectorizedBroadcastKernel<float>(float)"] * 2
    )
    assert trace.kernels.correlation.tolist() == [1, 3]
    assert (trace.kernels.end_ns - trace.kernels.start_ns).tolist() == [400_000] * 2
    assert [thread.tid for thread in trace.threads] == [11]  # Python and C++ of one thread
    assert {device.process for device in trace.devices} == {PID}
    # PyTorch's switches are none of Paddle's.
    assert {one.remedy for one in trace.capabilities.values()} == {""}


@pytest.mark.parametrize(
    "before",
    [allocations(20), [event("CudaRuntime", "cudaEventQuery", "9(C++)", i, 0.5) for i in range(20)]],
    ids=["allocations", "short calls"],
)
def test_it_is_known_by_what_may_come_first(before: Sequence[dict[str, Any]], tmp_path: Path) -> None:
    (rank,) = measure_capture(written(tmp_path / "x.json", 4, before), WindowRequest()).ranks
    assert rank.window.steps == 3  # the last lacks its wait


def test_its_steps_are_steps(tmp_path: Path) -> None:
    """From the second step's first work to the third's 1,000 us: 400 of compute, 50 of the copy. The last
    lacks the wait behind it and is left out."""
    (rank,) = measure_capture(written(tmp_path / "x.json", 4), WindowRequest()).ranks
    assert [step.name for step in rank.window.step_list] == [f"ProfileStep#{i}" for i in range(3)]
    assert rank.window.step_list[1].duration_ns == 1_000_000
    assert rank.ledger.compute == 3 * 400_000
    assert rank.ledger.exposed_memcpy == 3 * 50_000
    # From the copy's end at 790 us to the next kernel at 330, of which the loader takes [5, 305).
    assert rank.step_ledgers.leaf_ns["idle.data"].tolist() == [300_000] * 3


def test_colours_are_not_paddles_alone(tmp_path: Path) -> None:
    """Chrome's format has them, and a user's name may end as Paddle's do."""
    coloured = {"cname": "good", "name": "gemm", "cat": "kernel", "ph": "X", "pid": 0, "tid": 7}
    rows = [{**coloured, "ts": 1, "dur": 5, "args": {"device": 0, "stream": 7, "correlation": 3}}]
    rows.append({"name": "load[1.000 ms]", "cat": "user_annotation", "ph": "X", "pid": 1, "tid": 2})
    rows[1] |= {"ts": 1, "dur": 5}
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": rows}))
    trace = read_kineto(tmp_path / "x.json")
    assert trace.names(trace.ranges.name) == ["load[1.000 ms]"]
    assert "" not in {one.remedy for one in trace.capabilities.values() if not one.available}
