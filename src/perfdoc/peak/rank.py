"""One rank of a measurement: `python -m perfdoc.peak.rank`, started by `perfdoc.peak.measure`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from perfdoc.peak.bandwidth import measure_collectives, measure_memory
from perfdoc.peak.gemm import DTYPES, Best, measure_gemms
from perfdoc.peak.team import Team, Timed
from perfdoc.profiling.environment import cpu_name, versions
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.profiling.run_directory import utc_now

BUSY_FRAC = 0.9
"""With less of the CPU time that its threads could use, a rank had to share its cores."""
SPREAD_FRAC = 0.1
"""Of a quiet machine the median round lies closer to the best."""
SLOW_FRAC = 0.9
"""A GPU below this share of the best one is slower than its kind."""


def main(arguments: list[str] | None = None) -> int:
    """Measure; rank 0 writes the result to --out."""
    parser = argparse.ArgumentParser(prog="perfdoc.peak.rank", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--kind", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    team = Team.meet(rank=given.rank, ranks=given.ranks, kind=given.kind, at=given.meet)
    found = measure(team)
    if team.rank == 0:
        given.out.write_bytes(msgspec.json.encode(found))
    team.leave()
    return 0


def measure(team: Team) -> MeasuredCeilings:
    """Everything; every rank calls it."""
    busy = _busy_gpus(team)
    missing: dict[str, str] = {}
    # Before and after all else: what shares the memory comes and goes over seconds.
    memory = _done(measure_memory(team), missing)
    flops: dict[str, tuple[str, Timed]] = {}
    for dtype in DTYPES[team.kind]:
        best = measure_gemms(team, dtype)
        if isinstance(best, Best):
            m, n, k = best.shape
            flops[dtype] = (f"GEMM of {m:,} x {n:,} x {k:,}", best.timed)
        else:
            missing[dtype] = best
    for name, later in _done(measure_memory(team), missing).items():
        memory[name] = max(later, memory.get(name, later), key=_rate)
    collectives = _done(measure_collectives(team), missing)
    busy += signs({name: timed for group in (flops, memory) for name, (_, timed) in group.items()})
    return MeasuredCeilings(
        device=_device(team),
        kind=team.kind,
        ranks=team.ranks,
        threads=torch.get_num_threads() if team.kind == "cpu" else None,
        flops=_rates(flops),
        memory=_rates(memory),
        collectives=_rates(collectives),
        missing=missing,
        busy=tuple(busy),
        versions={k: v for k, v in versions().items() if k in ("torch", "cuda", "cudnn", "nccl")},
        measured_utc=utc_now(),
    )


def _done(
    found: Mapping[str, tuple[str, Timed] | str], missing: dict[str, str]
) -> dict[str, tuple[str, Timed]]:
    missing |= {name: why for name, why in found.items() if isinstance(why, str)}
    return {name: each for name, each in found.items() if not isinstance(each, str)}


def _rate(found: tuple[str, Timed]) -> float:
    return found[1].rate


def _rates(found: Mapping[str, tuple[str, Timed]]) -> dict[str, Rate]:
    return {
        name: Rate(best=t.rate, spread_frac=t.spread_frac, repeats=t.rounds, what=what)
        for name, (what, t) in found.items()
    }


def signs(found: Mapping[str, Timed]) -> list[str]:
    """What speaks for other work on the machine, and devices that are slower than their like; a line each."""
    lines = []
    shares = {n: t.cpu_frac for n, t in found.items() if t.cpu_frac is not None and t.cpu_frac < BUSY_FRAC}
    if shares:
        least = f"{min(shares.values()):.0%} of the CPU time that its threads could use"
        lines.append(f"a rank got as little as {least}, even in the best round ({', '.join(shares)})")
    spreads = {n: t.spread_frac for n, t in found.items() if t.spread_frac > SPREAD_FRAC}
    if spreads:
        most = f"up to {max(spreads.values()):.0%} below the best"
        lines.append(f"the median round lies {most} ({', '.join(spreads)})")
    for name, timed in found.items():
        top = max(timed.own_rates)
        for device, rate in enumerate(timed.own_rates):
            if timed.cpu_frac is None and rate < SLOW_FRAC * top:
                lines.append(f"device {device} reaches {rate / top:.0%} of the best one ({name})")
    return lines


def _busy_gpus(team: Team) -> list[str]:
    """GPUs that work before anything of ours does, where the driver's library can be asked."""
    if team.kind != "cuda":
        return []
    try:
        at_work = float(torch.cuda.utilization(team.rank))
    except (RuntimeError, ImportError, OSError, AttributeError):
        at_work = 0.0
    return [
        f"device {rank} was at work {percent:.0f} % of the time before"
        for rank, (percent,) in enumerate(team.all_of([at_work]))
        if percent > 100 * SPREAD_FRAC
    ]


def _device(team: Team) -> str:
    if team.kind == "cpu":
        return cpu_name() or "unknown"
    names = [torch.cuda.get_device_name(i) for i in range(team.ranks)]
    return ", ".join(dict.fromkeys(names))


if __name__ == "__main__":
    sys.exit(main())
