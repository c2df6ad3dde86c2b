"""The job's model against simulated jobs: another layout, batch or schedule, predicted and simulated.

    python benchmarks/job_model_table.py [--only 70B]

Each job is simulated as it is and with each change; perfdoc sees the captures of the unchanged one only, of
all ranks, of one rank a stage, and of rank 0 alone. The figure is the predicted step over the simulated one,
less 1; what is not modelled says why. The simulator shares the replay's engine but none of the model's code.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.forward.faults import Faults
from perfdoc.simulator.forward.hardware import GPUS
from perfdoc.simulator.forward.job import Job, Simulation, simulate_job
from perfdoc.simulator.forward.layout import Layout, parse_layout
from perfdoc.simulator.forward.rows import write_rank
from perfdoc.simulator.job.predict import build_models
from perfdoc.simulator.job.settings import JobSettings, captured_settings, spread_layers
from perfdoc.simulator.work.rank import RankWork, rank_work
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import ModelShape, known_models

GPU = GPUS["h100"]
STEPS = 2
JOBS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dense 8B, 8 ranks": (
        "llama3-8b",
        "tp=2,pp=2,dp=2,micro_batches=8,seq=4096",
        (
            "vpp=2",
            "vpp=4",
            "micro_batches=4",
            "micro_batches=16",
            "mbs=2,micro_batches=4",
            "tp=4,dp=1,micro_batches=16",
            "tp=1,dp=4,micro_batches=4",
            "pp=4,dp=1,micro_batches=16",
            "pp=1,dp=4,micro_batches=4",
        ),
    ),
    "dense 8B, 8 ranks, nothing overlaps over DP": (
        "llama3-8b",
        "dp=8,micro_batches=4,seq=4096,overlap_grad_reduce=off,overlap_param_gather=off",
        (
            "overlap_grad_reduce=on",
            "overlap_grad_reduce=on,overlap_param_gather=on",
            "micro_batches=2",
            "mbs=2,micro_batches=2",
        ),
    ),
    "dense 8B, CP 2": (
        "llama3-8b",
        "tp=2,cp=2,pp=2,micro_batches=8,seq=8192",
        ("vpp=2", "cp=1,dp=2,micro_batches=4", "tp=4,cp=1", "micro_batches=16"),
    ),
    "dense 70B, 64 ranks": (
        "llama3-70b",
        "tp=8,pp=4,dp=2",
        (
            "vpp=2",
            "vpp=5",
            "micro_batches=16",
            "mbs=2,micro_batches=4",
            "tp=4,dp=4,micro_batches=4",
            "pp=8,dp=1,micro_batches=16",
            "pp=2,dp=4,micro_batches=4",
            "tp=4,pp=8,micro_batches=8",
            "tp=4,pp=8,micro_batches=8,vpp=10",
            "tp=4,pp=2,dp=8,micro_batches=2",
            "tp=2,pp=8,dp=4,micro_batches=4",
        ),
    ),
    "MoE 8x7B, 16 ranks": (
        "mixtral-8x7b",
        "tp=2,pp=2,dp=4,ep=4,micro_batches=4,seq=4096",
        (
            "vpp=2",
            "micro_batches=8",
            "mbs=2,micro_batches=2",
            "ep=2",
            "tp=4,dp=2,ep=2,micro_batches=8",
            "pp=4,dp=2,ep=2,micro_batches=8",
        ),
    ),
}
"""By name: model, layout, and changes of it."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """From one choice of captures."""

    ranks: str
    off_frac: float | None
    """Of the step with the change; None where it is not modelled."""
    holds: bool
    why_not: str = ""


def changed(layout: Layout, change: str) -> Layout:
    """The layout with some fields given anew."""
    new = parse_layout(change)
    named = {part.partition("=")[0] for part in change.split(",")}
    return replace(layout, **{name: getattr(new, name) for name in named})


def step_ns(simulation: Simulation) -> float:
    """Of two steps, the mean."""
    return simulation.makespan_ns / STEPS


def simulated(shape: ModelShape, layout: Layout) -> Simulation:
    """The job without faults."""
    return simulate_job(shape, Job(layout=layout, faults=Faults()), GPU, STEPS)


def facts_of(shape: ModelShape, layout: Layout) -> JobFacts:
    """What a user gives beside the captures."""
    return JobFacts(
        **{key: getattr(layout, key) for key in ("world_size", "tp", "cp", "dp", "pp", "ep", "vpp")},
        micro_batches=layout.passes,
        micro_batch_sequences=layout.mbs,
        sequence_length=layout.seq,
        model=shape,
    )


def captured(simulation: Simulation, ranks: Sequence[int], facts: JobFacts, folder: Path) -> list[RankWork]:
    """The captures of some ranks, written and measured."""
    world, found = simulation.setting.layout.world_size, []
    for rank in ranks:
        path = write_rank(simulation.ranks[rank], GPU, world, folder / f"rank{rank}.sqlite", clock=Clock())
        (measured,) = measure_capture(path, WindowRequest(), facts, rank_work).ranks
        path.unlink()
        if isinstance(measured.also, RankWork):
            found.append(replace(measured.also, rank=rank))
    return found


def settings_of(base: JobSettings, shape: ModelShape, layout: Layout) -> JobSettings:
    """What the change asks of the model."""
    return replace(
        base,
        **{key: getattr(layout, key) for key in ("tp", "cp", "dp", "pp", "ep", "vpp", "mbs")},
        micro_batches=layout.passes,
        layers=base.layers if layout.pp == base.pp else spread_layers(shape.layers, layout.pp),
        messages_overlap=layout.vpp > 1,
        overlap_reduce=layout.overlap_grad_reduce,
        overlap_gather=layout.overlap_param_gather,
    )


def predictions(
    works: Sequence[tuple[str, list[RankWork]]],
    facts: JobFacts,
    shape: ModelShape,
    base: Layout,
    new: Layout,
    truth_ns: float,
) -> list[Predicted]:
    """From each choice of captures."""
    found = []
    for name, ranks in works:
        try:
            settings = captured_settings(ranks, facts, None)
            models = build_models(ranks, settings, shape, domain=GPU.per_node)
            asked = settings if new == base else settings_of(settings, shape, new)
            gain = models.gain(asked)
            then = models.model.step_ns(asked)
        except ValueError as error:
            found.append(Predicted(ranks=name, off_frac=None, holds=True, why_not=str(error)))
            continue
        low, high = ((models.model.measured_ns - 1e6 * (g or 0.0)) for g in (gain.high_ms, gain.low_ms))
        found.append(Predicted(ranks=name, off_frac=then / truth_ns - 1, holds=low <= truth_ns <= high))
    return found


def tabled(name: str) -> dict[str, list[float]]:
    """Print one job's table; absolute errors by choice of captures."""
    model, text, changes = JOBS[name]
    shape, base = known_models()[model], parse_layout(text)
    begin, simulation = time.monotonic(), simulated(shape, base)
    facts, errors = facts_of(shape, base), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as folder:
        every = captured(simulation, _some(base), facts, Path(folder))
    firsts = range(0, base.world_size, base.world_size // base.pp)
    works = [("all", every), ("stages", [w for w in every if w.rank in firsts]), ("0", every[:1])]
    print(f"\n**{name}** (`{model}`, `{text}`): {step_ns(simulation) / 1e6:,.1f} ms\n")
    print("| change | simulated | all ranks | a rank a stage | rank 0 |", "|---" * 5 + "|", sep="\n")
    for change in ("", *changes):
        new = changed(base, change) if change else base
        truth = step_ns(simulated(shape, new) if change else simulation)
        row = [f"{truth / 1e6:,.1f} ms ({truth / step_ns(simulation) - 1:+.1%})"]
        for p in predictions(works, facts, shape, base, new, truth):
            if p.off_frac is None:
                row.append(p.why_not)
            else:
                errors[p.ranks].append(abs(p.off_frac))
                row.append(f"{p.off_frac:+.1%}{'' if p.holds else ' **miss**'}")
        print("| " + " | ".join([f"`{change}`" if change else "none", *row]) + " |", flush=True)
    print(f"\n{time.monotonic() - begin:.0f} s")
    return errors


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="part of a job's name")
    given = parser.parse_args()
    errors = defaultdict[str, list[float]](list)
    for name in JOBS:
        if given.only in name:
            for ranks, some in tabled(name).items():
                errors[ranks] += some
    for ranks, some in errors.items():
        mean, most = statistics.fmean(some), max(some)
        print(f"{ranks}: mean absolute error {mean:.2%}, largest {most:.2%}, over {len(some)}")
    return 0


def _some(layout: Layout) -> list[int]:
    """Two whole pipelines: all others are like them."""
    each = layout.world_size // layout.pp
    return [s * each + r for s in range(layout.pp) for r in sorted({0, each - 1})]


if __name__ == "__main__":
    raise SystemExit(main())
