"""Cases of simulated jobs, measured, matched and replayed as `perfdoc analyze` does it."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import memory_files
from perfdoc.diagnose.job import job_configuration
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.whole_case import whole_case
from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.manifest import ModelShape
from perfdoc.rules.engine.case import Case
from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.job_facts import JobFacts, common_facts
from perfdoc.traces.load import find_captures
from tests.captures.memory_snapshot import write_fragmented
from tests.simulator.simulated import DENSE, MOE

FRAGMENTED = "fragmentation"
"""Beside the faults of a simulated job: a memory snapshot whose free memory lies in pieces."""
SHAPES = {"dense": DENSE, "moe": MOE, "small-vocabulary": msgspec.structs.replace(DENSE, vocabulary=1024)}
"""With a small vocabulary the last stage, which computes the loss, is no slower than the others."""


@cache
def simulated_case(shape: str, layout: str, *faults: str, known: bool = True) -> Case:
    """A simulated job of a small model. known: whether its job.yaml is given."""
    with tempfile.TemporaryDirectory() as folder:
        return _case(Path(folder), SHAPES[shape], layout, faults, known)


def _case(folder: Path, shape: ModelShape, layout: str, faults: tuple[str, ...], known: bool) -> Case:
    planted = parse_faults([f for f in faults if f != FRAGMENTED])
    job = simulate(shape, parse_layout(f"seq=4096,{layout}"), planted=planted, steps=2)
    write_job(job, folder, ranks=range(job.simulation.setting.layout.world_size))
    if FRAGMENTED in faults:
        write_fragmented(folder / "memory" / "rank0.pickle", device_bytes=job.gpu.memory_bytes)
    config = folder / "job.yaml"
    return measured_case([str(folder / "traces")], given_facts((), config) if known else None, config)


def measured_case(paths: list[str], given: JobFacts | None = None, config: Path | None = None) -> Case:
    """The case of captures. given: facts of the job, whose file then is `config`; None: nothing is known."""
    captures = find_captures(paths)
    request = AnalysisRequest(captures=captures, memory=memory_files([], captures), given=given or JobFacts())
    measurements = measure_all(request)
    found = measurements.captures
    configuration = job_configuration(
        common_facts([c.facts for c in found]), config if given is not None else None
    )
    return whole_case(found, measurements.memory, configuration).case


def with_settings(case: Case, configuration: Configuration) -> Case:
    """The same job with other settings."""
    return replace(case, configuration=configuration)
