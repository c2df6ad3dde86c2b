"""Small simulated jobs for tests, and what perfdoc measures in their captures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import RankMeasurement, measure_capture
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.replay import Replay
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import SimulatedJob, simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.rows import write_rank
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.simulator.rebuilt_of import job_of

DENSE = msgspec.structs.replace(known_models()["llama3-8b"], name="small", layers=8)
MOE = msgspec.structs.replace(known_models()["mixtral-8x7b"], name="small-moe", layers=4)


def simulated(
    layout: str, *faults: str, shape: ModelShape = DENSE, steps: int = 2, few_layers: bool = False
) -> SimulatedJob:
    """A job of a small model with sequences of 4,096 tokens. few_layers: of half as many, where the layout's
    chunks leave it so many."""
    lay = parse_layout(layout if "seq=" in layout else f"seq=4096,{layout}")
    if few_layers:
        shape = msgspec.structs.replace(shape, layers=max(shape.layers // 2, lay.pp * lay.vpp))
    return simulate(shape, lay, planted=parse_faults(faults), steps=steps)


def written(job: SimulatedJob, folder: Path, *, clock: Clock | None = None) -> list[Path]:
    """Every rank's capture."""
    world = job.simulation.setting.layout.world_size
    return [
        write_rank(timed, job.gpu, world, folder / f"rank{r}.sqlite", clock=clock or Clock())
        for r, timed in enumerate(job.simulation.ranks)
    ]


def measured(path: Path) -> RankMeasurement:
    """The only rank of a capture."""
    (found,) = measure_capture(path, WindowRequest()).ranks
    return found


def present(leaves: object) -> Mapping[str, int]:
    """Leaves that are not empty."""
    found: dict[str, Any] = dict(leaves)  # type: ignore[call-overload]
    return {name: ns for name, ns in found.items() if ns}


def facts_of(job: SimulatedJob) -> JobFacts:
    """The layout, as a user gives it."""
    lay = job.simulation.setting.layout
    sizes = {key: getattr(lay, key) for key in ("world_size", "tp", "cp", "dp", "pp", "ep", "vpp")}
    return JobFacts(**sizes, micro_batches=lay.passes, model=job.shape)


def replayed(job: SimulatedJob, folder: Path) -> tuple[Replay, Rebuilt]:
    """The job rebuilt from its captures, and the replay of the unedited step."""
    facts = facts_of(job)
    views = [v for path in written(job, folder) for v in views_of(read_trace(path), facts)]
    replay, rebuilt = job_of(views, facts)
    assert rebuilt is not None
    return replay, rebuilt
