"""The current configuration on other numbers of GPUs: more replicas, and what they make of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from perfdoc.diagnose.asked import UserError
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.tune.job import Job
from perfdoc.tune.result import Band, Scale

_MS = 1e6
GPUS_MAX = 1_000_000


def scaling_of(job: Job, gpus: int) -> list[Scale]:
    """Weak and strong scaling from the captured number of GPUs to `gpus`, by doubling or halving.

    UserError where the degrees do not divide that number or are not known.
    """
    base = job.base
    if not job.degrees_known:
        raise UserError("--gpus: the parallel degrees are not all known: give --set tp=N cp=N pp=N dp=N")
    shards = base.tp * base.pp * base.cp
    if not 1 <= gpus <= GPUS_MAX or gpus % shards:
        raise UserError(f"--gpus {gpus}: TP x PP x CP of the job is {shards}: give a multiple of it.")
    sizes = sorted({base.world, gpus, *_between(base.world, gpus, shards)})
    return [_scale(job, n, kind) for kind in ("weak", "strong") for n in sizes]


def _between(start: int, end: int, shards: int) -> Iterator[int]:
    low, high = sorted((start, end))
    n = start
    while low < n < high or n == start:
        if n % shards == 0:
            yield n
        if end > start:
            n *= 2
        elif n % 2:
            return
        else:
            n //= 2


def _scale(job: Job, gpus: int, kind: Literal["weak", "strong"]) -> Scale:
    base = job.base
    dp = gpus // (base.tp * base.pp * base.cp)
    count = base.micro_batches
    if kind == "strong":
        whole = base.micro_batches * base.dp
        if whole % dp:
            return _nothing(gpus, kind, dp, f"{whole} micro-batches do not divide over DP {dp}")
        count = whole // dp
    new = replace(base, dp=dp, micro_batches=count)
    try:
        gain = job.models.gain(new)
    except ValueError as error:
        return _nothing(gpus, kind, dp, str(error))
    now = job.models.model.measured_ns / _MS
    step = Band(
        low=max(now - (gain.high_ms or 0.0), 1e-6),
        mid=now - (gain.mid_ms or 0.0),
        high=now - (gain.low_ms or 0.0),
    )
    work = _samples(new) / _samples(base)
    speedup = Band(low=work * now / step.high, mid=work * now / step.mid, high=work * now / step.low)
    growth = gpus / base.world
    return Scale(
        gpus=gpus,
        kind=kind,
        dp=dp,
        micro_batches=count,
        step_ms=step,
        speedup=speedup,
        efficiency_frac=Band(low=speedup.low / growth, mid=speedup.mid / growth, high=speedup.high / growth),
        reason="",
    )


def _samples(settings: JobSettings) -> int:
    return settings.mbs * settings.micro_batches * settings.dp


def _nothing(gpus: int, kind: Literal["weak", "strong"], dp: int, reason: str) -> Scale:
    return Scale(
        gpus=gpus,
        kind=kind,
        dp=dp,
        micro_batches=None,
        step_ms=None,
        speedup=None,
        efficiency_frac=None,
        reason=reason,
    )
