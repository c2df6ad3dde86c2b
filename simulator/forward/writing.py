"""Writes a simulated job: captures under traces/, its answer, its facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from perfdoc.profiling.whole_file import made, refuse_overwrite, scratch
from perfdoc.simulator.captures.groups import groups_of, place_of
from perfdoc.simulator.captures.timeline import Clock
from perfdoc.simulator.forward.answer_file import answer_of, answer_text, facts_text
from perfdoc.simulator.forward.faults import parse_faults
from perfdoc.simulator.forward.job import SimulatedJob, simulate
from perfdoc.simulator.forward.layout import Layout, parse_layout
from perfdoc.simulator.forward.rows import write_rank
from perfdoc.simulator.forward.snapshot import write_fragmented
from perfdoc.traces.known_models import known_models


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
    whole or not at all. progress: called with (captures written, of how many). CaptureError where
    something is there, unless `force`.
    """
    folder = Path(folder)
    for kept in (*_captures(folder), *(folder / name for name in ("answer.json", "job.yaml"))):
        refuse_overwrite(kept, replace=force)
    with made(folder), scratch(folder) as new:
        size = _write(job, new, ranks=ranks, clock_error_ns=clock_error_ns, progress=progress)
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
    if job.simulation.setting.faults.fragmentation:
        written = write_fragmented(folder / "memory" / "rank0.pickle", device_bytes=job.gpu.memory_bytes)
        answer["fragmentation"] = asdict(written)
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
    """Write it as `perfdoc simulate` does. CaptureError where it is there, unless `force`."""
    job = demo_job()
    write_job(job, folder, ranks=range(job.simulation.setting.layout.world_size), force=force)
    return job
