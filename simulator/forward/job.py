"""A simulated job with its faults, and what each fault costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.records import dataclass
from perfdoc.simulator.captures.groups import groups_of, place_of
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.forward.faults import FAULTS, Faults, Job, Planted, planted_in
from perfdoc.simulator.forward.hardware import GPUS, Gpu
from perfdoc.simulator.forward.layer import Setting
from perfdoc.simulator.forward.layout import Layout, layer_parameters, table_parameters
from perfdoc.simulator.forward.program import DATA_NS, StageProgram
from perfdoc.simulator.forward.simulation import Matched, Pause, RankWork, SimulatedRank, simulate_ranks
from perfdoc.simulator.forward.tape import BETWEEN_NS, OpKind, Tape
from perfdoc.traces.known_models import ModelShape

OPERATIONS_MAX = 10_000_000
"""Operations on all ranks in all steps: about 11 GB of memory."""
ALL_SIMULATIONS_MAX = 40_000_000
"""Over all simulations, one after the other: some ten minutes."""
_OF_A_LAYER = 32
"""About fourteen forward and eighteen backward."""
_OF_A_PASS = 8
"""Messages of both directions, and the ends of the model."""


def check_work(shape: ModelShape, layout: Layout, planted: Sequence[Planted], steps: int) -> None:
    """ValueError, one line, where it would be too much: a job is simulated with its faults, without any, and
    without each."""
    faulty = planted_in(layout, planted).layout
    # One that cannot be is refused for that, and none is so large that counting it takes long.
    for some in (layout, faulty):
        some.check(shape)
    counts = [operations(shape, some, steps) for some in (faulty, layout)]
    simulations = 2 + (len(planted) if len(planted) > 1 else 0)
    for count, most, what in (
        (max(counts), OPERATIONS_MAX, "operations"),
        (max(counts) * simulations, ALL_SIMULATIONS_MAX, f"operations in {simulations} simulations"),
    ):
        if count > most:
            raise ValueError(
                f"--layout: about {count:,} {what} in all are more than {most:,}. "
                "Take fewer ranks, micro_batches, faults or --steps, or larger buckets."
            )


def operations(shape: ModelShape, layout: Layout, steps: int) -> int:
    """About how many operations all ranks run."""
    held = _parameters(shape, layout)
    buckets = 2 * -(-held // layout.bucket_parameters) if layout.dp * layout.cp > 1 else 0
    layers = -(-shape.layers // layout.pp)
    passes = layout.passes * (_OF_A_LAYER * layers + _OF_A_PASS * layout.vpp)
    return (passes + buckets) * layout.world_size * steps


def _parameters(shape: ModelShape, layout: Layout) -> int:
    """Of one rank, at most."""
    of_layers = [sum(layer_parameters(shape, n, tp=layout.tp, ep=layout.ep)) for n in (0, shape.layers - 1)]
    return max(of_layers) * -(-shape.layers // layout.pp) + 2 * table_parameters(shape, tp=layout.tp)


_ROUNDS = 8
"""Norms beside communication take longer, which moves them and what is beside them; so often at most."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """When every operation of a job ran."""

    setting: Setting
    ranks: Sequence[SimulatedRank]
    matched: Mapping[str, Sequence[Matched]]

    @property
    def makespan_ns(self) -> int:
        """From the first activity of any device to the last."""
        return max(int(r.end_ns.max()) for r in self.ranks) - min(int(r.start_ns.min()) for r in self.ranks)


def crossing(layout: Layout, gpu: Gpu) -> dict[str, bool]:
    """By group: whether any of its kind reaches over more than one node."""
    found: dict[str, bool] = {}
    for rank in range(layout.world_size):
        for key, group in groups_of(layout, rank).items():
            nodes = {r // gpu.per_node for r in group.ranks}
            found[key] = found.get(key, False) or len(nodes) > 1
    return found


def simulate_job(
    shape: ModelShape,
    job: Job,
    gpu: Gpu,
    steps: int,
    *,
    varied: Callable[[RankWork], RankWork] = lambda work: work,
) -> Simulation:
    """Simulate a job once. ValueError, one line, where the model cannot be split so. varied: what becomes of
    each rank's work before it runs."""
    job.layout.check(shape)
    setting = Setting(
        shape=shape, layout=job.layout, faults=job.faults, gpu=gpu, crosses_nodes=crossing(job.layout, gpu)
    )
    setting.layers()
    tapes = [StageProgram(setting, stage).record() for stage in range(job.layout.pp)]
    durations = [
        np.tile(np.array([op.duration_ns for op in tape.ops], np.int64), (steps, 1)) for tape in tapes
    ]
    ranks_here = range(job.layout.world_size)
    works = [varied(_rank_work(setting, rank, tapes, durations, steps)) for rank in ranks_here]
    ranks, matched = simulate_ranks(works)
    if job.faults.norm_factor > 1:
        ranks, matched = _with_slow_norms(works, ranks, matched, job.faults.norm_factor)
    return Simulation(setting=setting, ranks=ranks, matched=matched)


def _rank_work(
    setting: Setting, rank: int, tapes: Sequence[Tape], durations: Sequence[I64], steps: int
) -> RankWork:
    stage = place_of(setting.layout, rank).stage
    tape, duration = tapes[stage], durations[stage]
    faults = setting.faults
    if faults.late is not None and faults.late[0] == rank:
        computes = np.array([op.kind is OpKind.COMPUTE for op in tape.ops])
        duration = np.where(computes, np.round(duration * faults.late[1]).astype(np.int64), duration)
    first_pass = tape.ops[tape.passes[0][3]].call_ns
    pauses = []
    for step in range(steps):
        data = Pause(segment=0, at_ns=0, takes_ns=DATA_NS + faults.data_ns + BETWEEN_NS, name="perfdoc.data")
        mine = [data]
        if faults.gc_ns and step % setting.layout.world_size == rank:
            mine.append(
                Pause(segment=0, at_ns=first_pass, takes_ns=faults.gc_ns, name="perfdoc.gc generation=2")
            )
        pauses.append(mine)
    return RankWork(
        rank=rank,
        stage=stage,
        tape=tape,
        groups=groups_of(setting.layout, rank),
        pauses=pauses,
        duration_ns=duration,
    )


def _with_slow_norms(
    works: Sequence[RankWork], ranks: list[SimulatedRank], matched: Mapping[str, list[Matched]], factor: float
) -> tuple[list[SimulatedRank], Mapping[str, list[Matched]]]:
    """Simulate again until the norms that take longer are those that begin beside communication."""
    alone = [w.duration_ns for w in works]
    slow: list[object] = []
    for _ in range(_ROUNDS):
        found = [_beside(simulated) for simulated in ranks]
        if slow and all(np.array_equal(a, b) for a, b in zip(slow, found, strict=True)):  # type: ignore[arg-type]
            break
        slow = list(found)
        works = [
            replace(w, duration_ns=np.where(mask, np.round(base * factor).astype(np.int64), base))
            for w, base, mask in zip(works, alone, found, strict=True)
        ]
        ranks, matched = simulate_ranks(works)
    return ranks, matched


def _beside(simulated: SimulatedRank) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """(steps, operations): norms that begin while communication runs."""
    tape = simulated.work.tape
    norm = {i for kernel, i in tape.kernels.items() if kernel.name.startswith("rmsnorm")}
    is_norm = np.array([op.kernel in norm for op in tape.ops])
    communicates = np.array([bool(op.group) for op in tape.ops])
    begins, ends = (
        np.sort(simulated.start_ns[:, communicates], None),
        np.sort(simulated.end_ns[:, communicates], None),
    )
    resident = np.searchsorted(begins, simulated.start_ns, "right") > np.searchsorted(
        ends, simulated.start_ns, "right"
    )
    return is_norm & resident


@dataclass(frozen=True, kw_only=True)
class FaultCost:
    """What one fault costs: makespan with all faults less makespan with all others."""

    name: str
    value: str
    cost_ns: int
    shows_in: str
    edit: str


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A simulated job and what its faults cost."""

    simulation: Simulation
    shape: ModelShape
    gpu: Gpu
    steps: int
    planted: tuple[Planted, ...]
    costs: tuple[FaultCost, ...]
    sound_ns: int
    """Makespan without any fault."""


def simulate(
    shape: ModelShape,
    layout: Layout,
    *,
    planted: Sequence[Planted] = (),
    gpu: Gpu = GPUS["h100"],
    steps: int = 2,
) -> SimulatedJob:
    """Simulate a job with all faults, and once more without each. ValueError, one line."""
    if steps < 1:
        raise ValueError("--steps: at least 1.")
    job = planted_in(layout, planted)
    simulation = simulate_job(shape, job, gpu, steps)
    sound = (
        simulate_job(shape, Job(layout=layout), gpu, steps).makespan_ns if planted else simulation.makespan_ns
    )
    costs = []
    for fault in planted:
        others = [p for p in planted if p is not fault]
        without = (
            sound if not others else simulate_job(shape, planted_in(layout, others), gpu, steps).makespan_ns
        )
        row = FAULTS[fault.name]
        costs.append(
            FaultCost(
                name=fault.name,
                value=fault.value,
                cost_ns=simulation.makespan_ns - without,
                shows_in=row.shows_in,
                edit=row.edit,
            )
        )
    return SimulatedJob(
        simulation=simulation,
        shape=shape,
        gpu=gpu,
        steps=steps,
        planted=tuple(planted),
        costs=tuple(costs),
        sound_ns=sound,
    )


__all__ = ["FaultCost", "Faults", "SimulatedJob", "Simulation", "crossing", "simulate", "simulate_job"]
