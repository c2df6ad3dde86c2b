"""Writes a simulated job: captures under traces/, its answer, its facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.whole_file import made, refuse_overwrite, scratch, undisturbed
from perfdoc.simulator.captures.groups import groups_of, place_of
from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.forward.answer import rank_ledger
from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import SimulatedJob, Simulation, simulate
from perfdoc.simulator.forward.layout import Layout, parse_layout
from perfdoc.simulator.forward.rows import write_rank
from perfdoc.simulator.forward.simulation import Matched, SimulatedRank
from perfdoc.traces.known_models import known_models

NOTE = (
    "Durations follow from rooflines with stated efficiencies (simulator/forward/hardware.py); no absolute "
    "time in here is claimed to be real. Times are true time in ns: a file's own clock is given by rank."
)


def answer_of(job: SimulatedJob, files: Mapping[int, str], clocks: Sequence[Clock]) -> dict[str, Any]:
    """The sidecar's content. `files`: name of the capture of each rank that has one."""
    simulation = job.simulation
    return {
        "note": NOTE,
        "model": job.shape.name,
        "gpu": job.gpu.name,
        "steps": job.steps,
        "layout": asdict(simulation.setting.layout),
        "makespan_ns": simulation.makespan_ns,
        "without_faults_ns": job.sound_ns,
        "faults": [asdict(c) for c in job.costs],
        "communicators": _communicators(simulation),
        "waits": _waits(simulation),
        "ranks": [
            _rank(simulated, files.get(simulated.work.rank), clocks[simulated.work.rank])
            for simulated in simulation.ranks
        ],
    }


def answer_text(answer: Mapping[str, Any]) -> str:
    """As JSON, a rank a line."""
    head = {k: v for k, v in answer.items() if k != "ranks"}
    ranks = ",\n  ".join(json.dumps(r) for r in answer["ranks"])
    return json.dumps(head, indent=1)[:-2] + f',\n "ranks": [\n  {ranks}\n ]\n}}\n'


def facts_text(job: SimulatedJob) -> str:
    """The job's facts and settings for `perfdoc analyze --config`, the settings as the trainer spells
    them."""
    setting = job.simulation.setting
    layout, shared = setting.layout, setting.layout.dp * setting.layout.cp
    sections: dict[str, dict[str, object]] = {
        "": {
            "model": job.shape.name,
            "num_layers": job.shape.layers,
            "world_size": layout.world_size,
            "vpp": layout.vpp,
            "micro_batches": layout.passes,
            "seq_length": layout.seq,
            "dtype": "bf16",
        },
        "parallel": {
            "tensor_model_parallel_size": layout.tp,
            "sequence_parallel": layout.sp and layout.tp > 1,
            "pipeline_model_parallel_size": layout.pp,
            "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
            "context_parallel_size": layout.cp,
            "cp_comm_type": "p2p",
            "expert_model_parallel_size": layout.ep,
            "data_parallel_size": layout.dp,
        },
        "overlap": {
            "overlap_grad_reduce": layout.overlap_grad_reduce and shared > 1,
            "overlap_param_gather": layout.overlap_param_gather
            and layout.distributed_optimizer
            and shared > 1,
            "bucket_size": layout.bucket_parameters,
            "overlap_p2p_comm": layout.vpp > 1,
        },
        "optimizer": {"use_distributed_optimizer": layout.distributed_optimizer},
        "precision": {"grad_reduce_in_fp32": setting.faults.fp32_reduce},
        "training": {
            "micro_batch_size": layout.mbs,
            "global_batch_size": layout.passes * layout.mbs * layout.dp,
        },
    }
    lines = []
    for section, values in sections.items():
        lines += [f"{section}:\n"] if section else []
        lines += [f"{'  ' if section else ''}{key}: {_yaml(value)}\n" for key, value in values.items()]
    return "".join(lines)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rank(simulated: SimulatedRank, file: str | None, clock: Clock) -> dict[str, Any]:
    ledger = rank_ledger(simulated)
    return {
        "rank": simulated.work.rank,
        "stage": simulated.work.stage,
        "file": file,
        "clock": asdict(clock),
        "window_start_ns": ledger.window_start_ns,
        "window_end_ns": ledger.window_end_ns,
        "step_start_ns": list(ledger.step_start_ns),
        "ledger_ns": {
            "compute": ledger.compute_ns,
            "exposed_comm": dict(ledger.exposed_comm_ns),
            "exposed_memcpy": ledger.exposed_memcpy_ns,
            "idle": dict(ledger.idle_ns),
        },
        "comm_ns": dict(ledger.comm_ns),
    }


def _communicators(simulation: Simulation) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for simulated in simulation.ranks:
        for group in simulated.work.groups.values():
            found[group.communicator] = {
                "communicator": f"0x{group.communicator:016x}",
                "dimension": group.dimension,
                "description": group.description,
                "ranks": list(group.ranks),
            }
    return list(found.values())


def _waits(simulation: Simulation) -> dict[str, dict[str, dict[str, int]]]:
    """By dimension: what each rank waited for others in matched collectives, and what it alone caused."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for key, matched in simulation.matched.items():
        dimension = "dp" if key == "edp" else key
        of = found.setdefault(dimension, {"waited_ns": {}, "caused_ns": {}})
        for m in matched:
            _add_waits(of, m)
    return found


def _add_waits(of: dict[str, dict[str, int]], m: Matched) -> None:
    last = max(m.start_ns)
    for rank, start in zip(m.ranks, m.start_ns, strict=True):
        of["waited_ns"][str(rank)] = of["waited_ns"].get(str(rank), 0) + last - start
    late = [r for r, s in zip(m.ranks, m.start_ns, strict=True) if s == last]
    if len(late) == 1 and len(m.ranks) > 1:
        caused = sum(last - s for s in m.start_ns)
        of["caused_ns"][str(late[0])] = of["caused_ns"].get(str(late[0]), 0) + caused


def clocks_of(world_size: int, error_ns: int) -> list[Clock]:
    """Clocks whose UTC times are wrong by up to `error_ns` either way, evenly spread over ranks."""
    if not error_ns:
        return [Clock()] * world_size
    # Multiples of an irrational part of the range: neighbours differ, and no two runs do.
    return [
        Clock(utc_error_ns=int(error_ns * (2 * ((rank * 0.618_033_988_75) % 1) - 1)))
        for rank in range(world_size)
    ]


def chosen_ranks(text: str, layout: Layout) -> list[int]:
    """`all`, `stages` (one rank of each pipeline stage), `groups` (those, and the neighbours of
    rank 0 in every dimension) or `0,8-15`. Raises ValueError, one line."""
    world = layout.world_size
    if text == "all":
        return list(range(world))
    first = [r for r in range(world) if _is_first(layout, r)]
    if text == "stages":
        return first
    if text == "groups":
        return sorted({*first, *(r for g in groups_of(layout, 0).values() for r in g.ranks)})
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 20:
            raise ValueError(f"--ranks {text!r}: write all, stages, groups, or ranks such as 0,8-15.")
        begin, end = int(low), int(high or low)
        if not begin <= end < world:
            raise ValueError(f"--ranks {part}: the job's ranks are 0 to {world - 1}.")
        found |= set(range(begin, end + 1))
    return sorted(found)


def _is_first(layout: Layout, rank: int) -> bool:
    place = place_of(layout, rank)
    return place.tensor == place.context == place.data == 0


def write_job(
    job: SimulatedJob,
    folder: Path,
    *,
    ranks: Sequence[int],
    clock_error_ns: int = 0,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write traces/rank<N>.sqlite, answer.json and job.yaml; returns the bytes of all captures.

    Everything is written beside what is there and moved into place at the end, so that a job is replaced as a
    whole or not at all. progress: called with (captures written, of how many). TraceError where
    something is there, unless `force`.
    """
    folder = Path(folder)
    for kept in (*_captures(folder), *(folder / name for name in ("answer.json", "job.yaml"))):
        refuse_overwrite(kept, replace=force)
    with made(folder), scratch(folder) as new:
        size = _write(job, new, ranks=ranks, clock_error_ns=clock_error_ns, progress=progress)
        with undisturbed():
            _into_place(new, folder)
    return size


def _captures(folder: Path) -> list[Path]:
    return [*folder.glob("traces/rank*.sqlite"), *folder.glob("memory/rank*.pickle")]


def _into_place(source: Path, folder: Path) -> None:
    """Move every file, and take away captures of another job: they would be read with this one's."""
    new = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).replace(folder / name)
    for stale in _captures(folder):
        if stale.relative_to(folder) not in new:
            stale.unlink()


def _write(
    job: SimulatedJob,
    folder: Path,
    *,
    ranks: Sequence[int],
    clock_error_ns: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    world = job.simulation.setting.layout.world_size
    clocks = clocks_of(world, clock_error_ns)
    files, size = {}, 0
    for number, rank in enumerate(ranks):
        name = f"traces/rank{rank}.sqlite"
        path = write_rank(job.simulation.ranks[rank], job.gpu, world, folder / name, clock=clocks[rank])
        files[rank] = name
        size += path.stat().st_size
        if progress is not None:
            progress(number + 1, len(ranks))
    answer = answer_of(job, files, clocks)
    for name, text in (("answer.json", answer_text(answer)), ("job.yaml", facts_text(job))):
        (folder / name).write_text(text, encoding="utf-8")
    return size


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
    """Write it as `perfdoc simulate` does. TraceError where it is there, unless `force`."""
    job = demo_job()
    write_job(job, folder, ranks=range(job.simulation.setting.layout.world_size), force=force)
    return job
