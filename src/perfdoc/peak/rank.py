"""One rank of a measurement: `python -m perfdoc.peak.rank`, started by `measure`."""

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from perfdoc.peak.store import last_cache_bytes, usable_memory_bytes
from perfdoc.peak.team import Team, Timed, Work
from perfdoc.profiling.environment import cpu_name, versions
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.profiling.run_directory import utc_now
from perfdoc.records import dataclass
from perfdoc.results.figures import size

_MIB = 1 << 20
_ROUND_S, _ROUNDS = 0.05, 8
"""Long enough for the clock, short enough to fall between two disturbances."""
CUDA_ARRAY_BYTES = 1 << 30
ARRAYS = 3
"""Of a triad; a copy uses two of them."""
_CACHES = 4
"""An array is this many times as large as the last cache, where memory allows: it helps no more then."""
_MEMORY_PART, _MOST_BYTES = 8, 3 << 30
"""All arrays of all ranks together take an eighth of the machine's memory and 3 GiB at most."""
MESSAGE_BYTES: Mapping[str, int] = {"cpu": 16 * _MIB, "cuda": 256 * _MIB}


def array_bytes(*, cache_bytes: int, memory_bytes: int, ranks: int) -> int:
    """Of each array of a rank on a CPU: whole MiB, 16 at least.

    >>> array_bytes(cache_bytes=32 << 20, memory_bytes=64 << 30, ranks=2) >> 20
    128
    """
    room = min(memory_bytes // _MEMORY_PART, _MOST_BYTES) // (ARRAYS * ranks)
    return max(min(_CACHES * cache_bytes, room) // _MIB, 16) * _MIB


def measure_memory(team: Team) -> dict[str, tuple[str, Timed] | str]:
    """Bytes a second of a rank, by kernel, with what ran; a reason where it did not.

    copy: a = b, two arrays of bytes moved. triad: a = b + s·c, three. Neither counts that a CPU reads a line
    before it writes to it, as is usual.
    """
    one = CUDA_ARRAY_BYTES
    if team.kind == "cpu":
        one = array_bytes(
            cache_bytes=last_cache_bytes(), memory_bytes=usable_memory_bytes(), ranks=team.ranks
        )
    arrays: list[Any] = []

    def fill() -> None:
        arrays.extend(torch.ones(one // 4, device=team.device) for _ in range(ARRAYS))

    if reason := team.can(fill):
        return {"copy": reason, "triad": reason}
    a, b, c = arrays
    works: dict[str, tuple[Work, int]] = {
        "copy": (lambda: a.copy_(b), 2 * one),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 3 * one),
    }
    return {
        name: _timed(team, f"{name} of {size(one)}", work, moved) for name, (work, moved) in works.items()
    }


def measure_collectives(team: Team) -> dict[str, tuple[str, Timed] | str]:
    """Bus bandwidth of collectives over all ranks, bytes a second: what a rank sends over its links when the
    ring moves as little as possible. Of B bytes in all over n ranks, an all-reduce moves 2·B·(n-1)/n, an
    all-gather and an all-to-all B·(n-1)/n.
    """
    n, whole = team.ranks, MESSAGE_BYTES[team.kind]
    if n == 1:
        return {}
    elements = whole // 4 // n * n
    full = torch.ones(elements, dtype=torch.float32, device=team.device)
    part = torch.ones(elements // n, dtype=torch.float32, device=team.device)
    other = torch.empty_like(full)
    moved = elements * 4 * (n - 1) / n
    works: dict[str, tuple[Work, float]] = {
        "all_reduce": (lambda: dist.all_reduce(full, op=dist.ReduceOp.MAX), 2 * moved),
        "all_gather": (lambda: dist.all_gather_into_tensor(other, part), moved),
        "all_to_all": (lambda: dist.all_to_all_single(other, full), moved),
    }
    of = f"of {size(elements * 4)} over {n} ranks"
    return {
        name: _timed(team, f"{name.replace('_', '-')} {of}", work, amount, together=True)
        for name, (work, amount) in works.items()
    }


def _timed(
    team: Team, what: str, work: Work, amount: float, *, together: bool = False
) -> tuple[str, Timed] | str:
    if reason := team.can(work):
        return reason
    return what, team.timed(work, amount, round_s=_ROUND_S, rounds=_ROUNDS, together=together)


Shape = tuple[int, int, int]
"""M x N x K: (M x K) times (K x N)."""

SHAPES: dict[str, Sequence[Shape]] = {
    # The largest GEMMs that a CPU does within a second come last; slow dtypes stop before.
    "cpu": ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 1024, 1024), (2048, 2048, 2048)),
    # Squares, and the long sides of a layer: a last wave of tiles that is not full weighs less there.
    "cuda": (
        *((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)),
        *((4096, 14336, 4096), (8192, 4096, 14336), (8192, 28672, 8192), (16384, 8192, 1280)),
    ),
}
DTYPES: dict[str, Sequence[str]] = {
    "cpu": ("fp32", "bf16", "fp16", "fp64"),
    "cuda": ("bf16", "fp16", "tf32", "fp32", "fp8", "fp64"),
}
LONGEST_S = 0.1
"""No GEMM of a sweep is to last longer."""
_LOOK_S, _LOOKS = 0.03, 2
_FINAL = 2
"""The best shapes of the looks, which are measured."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best shape of one dtype."""

    shape: Shape
    timed: Timed


def measure_gemms(team: Team, dtype: str) -> Best | str:
    """The best rate of one dtype, FLOP/s of a rank; why there is none as text.

    A GEMM of M x N x K is 2·M·N·K operations.
    """
    with _mode(dtype):
        looks: list[tuple[float, Shape]] = []
        for shape in SHAPES[team.kind]:
            operations = 2.0 * shape[0] * shape[1] * shape[2]
            if looks and operations / max(looks)[0] > LONGEST_S:
                continue
            work = _tried(team, dtype, shape)
            if isinstance(work, str):
                if not looks:
                    return work
                continue  # too large for the memory that is left
            look = team.timed(work, operations, round_s=_LOOK_S, rounds=_LOOKS)
            looks.append((look.rate, shape))
        return max(
            (_rated(team, dtype, shape) for _, shape in sorted(looks)[-_FINAL:]),
            key=lambda best: best.timed.rate,
        )


def _rated(team: Team, dtype: str, shape: Shape) -> Best:
    work, operations = gemm(team, dtype, shape), 2.0 * shape[0] * shape[1] * shape[2]
    return Best(shape=shape, timed=team.timed(work, operations, round_s=_ROUND_S, rounds=_ROUNDS))


def _tried(team: Team, dtype: str, shape: Shape) -> Work | str:
    """A GEMM that runs on every rank, or why it does not."""
    made: list[Work] = []
    reason = team.can(lambda: made.append(gemm(team, dtype, shape))) or team.can(made[0])
    return reason or made[0]


def gemm(team: Team, dtype: str, shape: Shape) -> Work:
    """One GEMM of random operands, the second transposed, as a linear layer's is."""
    m, n, k = shape
    generator = torch.Generator(device=team.device).manual_seed(1)
    real = torch.float32 if dtype in ("fp32", "tf32", "fp8") else _TORCH[dtype]
    a = torch.randn(m, k, device=team.device, dtype=torch.float32, generator=generator).to(real)
    b = torch.randn(n, k, device=team.device, dtype=torch.float32, generator=generator).to(real)
    if dtype == "fp8":
        eight, one = torch.float8_e4m3fn, torch.ones((), device=team.device)
        x, y = a.to(eight), b.to(eight).t()
        return lambda: torch._scaled_mm(
            x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    out = torch.empty(m, n, device=team.device, dtype=real)
    return lambda: torch.mm(a, b.t(), out=out)


_TORCH: dict[str, Any] = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def _mode(dtype: str) -> Iterator[None]:
    """fp32 on CUDA cores, tf32 on tensor cores."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before


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
    except Exception:  # noqa: BLE001 - NVML's errors are of its own class; the figure is then unknown
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
