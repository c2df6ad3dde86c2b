"""Runs of planted step times, step by step: as logs of Megatron-LM and as run directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from perfdoc.profiling.logs import StepRecord
from perfdoc.profiling.manifest import ConfigValue
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.step_log import StepLog
from tests.gate.commands import MS
from tests.gate.manifests import tiny_manifest

STEPS = 120
F64 = npt.NDArray[np.float64]
Shape = Callable[[F64], F64]


def times_ms(seed: int, shape: Shape | None = None) -> F64:
    """Steps of 100 ms that scatter by 0.5 %, in runs that scatter by 0.2 %; the shape is laid over them."""
    random = np.random.default_rng(seed)
    level = 100 * (1 + 0.002 * random.standard_normal())
    times: F64 = level * (1 + 0.005 * random.standard_normal(STEPS))
    return times if shape is None else shape(times)


def log_line(number: int, total: int, ms: str, batch: int = 128) -> str:
    """A line of Megatron-LM's."""
    return (
        f" iteration {number:8d}/ {total:8d} | consumed samples: {number * batch:12d} | elapsed time per "
        f"iteration (ms): {ms} | global batch size: {batch:5d} |"
    )


def log_of(path: Path, times: Sequence[float] | F64, total: int | None = None) -> Path:
    """A whole log, unless a larger total is announced."""
    lines = [log_line(i, total or len(times), f"{ms:.1f}") for i, ms in enumerate(times, 1)]
    path.write_text("\n".join(lines) + "\n")
    return path


def directory_of(
    path: Path,
    ranks_ms: Sequence[Sequence[float] | F64],
    *,
    data_ms: Sequence[float] | F64 | None = None,
    garbage_ms: Sequence[float] | F64 | None = None,
    train_iters: int | None = None,
    status: str = "finished",
) -> Path:
    """A run directory; the wait for data and the garbage collection are of every rank."""
    run = RunDirectory.create(path)
    manifest = tiny_manifest(bucket_size=1, created_utc=f"2026-11-21T00:00:00Z {path.name}")
    layout = msgspec.structs.replace(manifest.layout, world_size=len(ranks_ms))
    config = {"train_iters": ConfigValue(value=train_iters or len(ranks_ms[0]), origin="command line")}
    run.write_manifest(msgspec.structs.replace(manifest, layout=layout, config=config))
    run.end(status=status, reason="")  # type: ignore[arg-type]
    for rank, times in enumerate(ranks_ms):
        log = StepLog(run.steps_path(rank))
        for i, ms in enumerate(times):
            log.write(
                StepRecord(
                    step=i + 1,
                    start_ns=i,
                    duration_ns=round(ms * MS),
                    tokens=1,
                    data_ns=None if data_ms is None else round(data_ms[i] * MS),
                    garbage_ns=None if garbage_ms is None else round(garbage_ms[i] * MS),
                )
            )
        log.close()
    return run.path
