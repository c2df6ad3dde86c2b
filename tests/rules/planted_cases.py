"""Cases of planted jobs: measured once for a module, then seen under other settings."""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.profiling.manifest import ModelShape
from perfdoc.rules.engine.case import Case
from perfdoc.traces.known_models import known_models
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.planted.job import planted_job
from tests.planted.spec import JobSpec

GPUS = ("NVIDIA H100 80GB HBM3", "NVIDIA GB200", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "Mystery")
LLAMA = known_models()["llama3-8b"]
"""8.03 billion parameters, 32 layers 4,096 wide, 32 heads, 8 groups, sequences of 8,192."""
MIXTRAL = known_models()["mixtral-8x7b"]


@cache
def planted_case(spec: JobSpec) -> Case:
    """What perfdoc measures of a planted job, all ranks in one capture and so on one clock."""
    timelines = planted_job(replace(spec, one_file=True)).timelines
    with tempfile.TemporaryDirectory() as folder:
        paths = [write_nsys_sqlite(t, Path(folder) / f"{i}.sqlite") for i, t in enumerate(timelines)]
        return Case.of([measure_capture(path, WindowRequest()) for path in paths])


def under(
    case: Case,
    settings: Mapping[str, Value],
    *,
    model: ModelShape | None = None,
    dialect: str = "megatron_core",
) -> Case:
    """The same under these settings."""
    configuration = Configuration(values=dict(settings), dialect=dialect)  # type: ignore[arg-type]
    facts = replace(case.job.facts, model=model)
    return replace(case, configuration=configuration, job=replace(case.job, facts=facts))


def on(case: Case, gpu_name: str) -> Case:
    """The same on other GPUs."""
    captures = []
    for capture in case.captures:
        ranks = [replace(r, device=replace(r.device, gpu_name=gpu_name)) for r in capture.ranks]
        captures.append(replace(capture, ranks=ranks))
    return replace(case, captures=captures)


def with_exposed(case: Case, dimension: str, frac: float) -> Case:
    """The same with so much of each window exposed in one dimension, taken from or given to compute."""

    def changed(rank: RankMeasurement) -> RankMeasurement:
        ledger = rank.ledger
        ns = math.ceil(frac * ledger.total)
        more = ns - ledger.exposed_comm.by_name[dimension]
        exposed = replace(ledger.exposed_comm, **{dimension: ns})
        return replace(rank, ledger=replace(ledger, exposed_comm=exposed, compute=ledger.compute - more))

    captures = [replace(c, ranks=[changed(r) for r in c.ranks]) for c in case.captures]
    return replace(case, captures=captures)


def with_compute(case: Case, step_ns: int) -> Case:
    """The same with so much more compute in each step, and windows longer by that."""

    def changed(rank: RankMeasurement) -> RankMeasurement:
        more = step_ns * rank.window.steps
        ledger = rank.ledger
        return replace(rank, ledger=replace(ledger, compute=ledger.compute + more))

    captures = [replace(c, ranks=[changed(r) for r in c.ranks]) for c in case.captures]
    return replace(case, captures=captures)


def shaped(shape: ModelShape, **changes: int | None) -> ModelShape:
    """Another shape; its number of parameters is then not known."""
    return msgspec.structs.replace(shape, **{"parameters": None, **changes})
