"""A capture with much in it and a known answer, for tests that need any: two ranks in a file."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import Timeline
from tests.planted.job import JobSpec, planted_job
from tests.planted.spec import Late

SPEC = JobSpec(
    dp=2,
    ep=2,
    micro_batches=8,
    steps=4,
    one_file=True,
    data_ns=900_000,
    gc=Late(rank=0, extra_ns=3_100_000, steps=(1,)),
)
"""Gradients and weights move over DP and tokens over EP, hidden and exposed; rank 0 collects garbage in
step 1, for which rank 1 waits; every step waits for data."""


def capture_timeline() -> Timeline:
    """Both ranks, as they were laid."""
    return planted_job(SPEC).timelines[0]


def write_capture(folder: Path) -> Path:
    """Write demo.sqlite, and beside it answer.json with the leaves of each rank; the capture's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _contents().items():
        (folder / name).write_bytes(content)
    return folder / "demo.sqlite"


@cache
def _contents() -> dict[str, bytes]:
    """Made once: dozens of tests write them."""
    devices = [
        {
            "steps": SPEC.steps,
            "window_start_ns": rank.window_start_ns,
            "window_end_ns": rank.window_end_ns,
            "step_start_ns": list(rank.step_start_ns),
            "compute_ns": rank.compute_ns,
            "exposed_comm_ns": sum(rank.exposed_comm_ns.values()),
            "exposed_memcpy_ns": rank.exposed_memcpy_ns,
            "idle_ns": sum(rank.idle_ns.values()),
        }
        for rank in planted_job(SPEC).answer.ranks
    ]
    with tempfile.TemporaryDirectory() as made:
        trace = write_nsys_sqlite(capture_timeline(), Path(made) / "demo.sqlite").read_bytes()
    return {"demo.sqlite": trace, "answer.json": json.dumps({"devices": devices}).encode()}
