"""The demonstration: a job of two ranks with three faults, small enough to be simulated in seconds."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import SimulatedJob, simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.known_models import known_models

_MODEL, _LAYERS = "llama3-8b", 4
_LAYOUT = "dp=2,seq=2048,micro_batches=2"
_FAULTS = ("gc=10", "slow_data=5", "late_rank=1:1.15")
_STEPS = 4


def demo_job() -> SimulatedJob:
    """Four layers of Llama 3 8B on two H100s, four steps: each step waits for its data, one rank collects
    garbage in it, and rank 1 is slow throughout."""
    shape = msgspec.structs.replace(known_models()[_MODEL], layers=_LAYERS)
    return simulate(shape, parse_layout(_LAYOUT), planted=parse_faults(_FAULTS), steps=_STEPS)


def write_demo(folder: Path, *, force: bool = False) -> SimulatedJob:
    """Write it as `perfdoc simulate` does. CaptureError where it is there, unless `force`."""
    job = demo_job()
    write_job(job, folder, ranks=range(job.simulation.setting.layout.world_size), force=force)
    return job
