"""`perfdoc tune`: read, search, rank."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import UserError
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import SHORT_NAMES, catalogue
from perfdoc.knobs.values import Opaque, read_value
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.tune.job import Job, read_job
from perfdoc.tune.ranking import tuning_of
from perfdoc.tune.result import Band, Scale, Tuning
from perfdoc.tune.search import search
from perfdoc.tune.space import CP, EP, FIELD_OF, MBS, PP, SHORT, TP, Axes, axes_of, point_of, restricted


def key_of(option: str, word: str) -> str:
    """The canonical id of a searched setting, by it or a short name. Raises UserError.

    >>> key_of("--only", "vpp")
    'virtual_pipeline_model_parallel_size'
    """
    key = SHORT.get(word.strip()) or SHORT_NAMES.get(word.strip(), word.strip())
    if key in FIELD_OF:
        return key
    near = difflib.get_close_matches(key, [*SHORT, *FIELD_OF], n=1)
    hint = f"did you mean {near[0]}?" if near else f"searched are {', '.join(SHORT)}."
    raise UserError(f"{option} {word!r}: is no setting that is searched; {hint}")


def only_of(words: Sequence[str]) -> list[str]:
    """`vpp,mbs` → canonical ids. Raises UserError."""
    keys = [part for word in words for part in word.split(",") if part.strip()]
    if words and not keys:
        raise UserError("--only: names no setting. Give keys with commas, such as vpp,mbs.")
    return [key_of("--only", key) for key in keys]


def fixed_of(words: Sequence[str]) -> Mapping[str, Value]:
    """`tp=8` each → canonical id to value. Raises UserError."""
    found: dict[str, Value] = {}
    for part in (p for word in words for p in word.replace(",", " ").split()):
        name, equals, text = part.partition("=")
        if not equals or not text:
            raise UserError(f"--fix {part!r}: write key=value, such as tp=8.")
        key = key_of("--fix", name)
        try:
            value = None if text.lower() in ("none", "null") else read_value(catalogue()[key], text)
        except ValueError as error:
            raise UserError(f"--fix {part}: {error}.") from error
        if isinstance(value, Opaque):
            raise UserError(f"--fix {part}: is no value that can be read.")
        if found.setdefault(key, value) != value:
            raise UserError(f"--fix {part}: {name} is given twice.")
    return found


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
    nothing = Scale(
        gpus=gpus,
        kind=kind,
        dp=dp,
        micro_batches=None,
        step_ms=None,
        speedup=None,
        efficiency_frac=None,
        reason="",
    )
    if kind == "strong":
        whole = base.micro_batches * base.dp
        if whole % dp:
            return replace(nothing, reason=f"{whole} micro-batches do not divide over DP {dp}")
        count = whole // dp
    new = replace(base, dp=dp, micro_batches=count)
    try:
        gain = job.models.gain(new)
    except ValueError as error:
        return replace(nothing, reason=str(error))
    now = job.models.model.measured_ns / _MS
    step = Band(
        low=max(now - (gain.high_ms or 0.0), 1e-6),
        mid=now - (gain.mid_ms or 0.0),
        high=now - (gain.low_ms or 0.0),
    )
    work = _samples(new) / _samples(base)
    speedup = Band(low=work * now / step.high, mid=work * now / step.mid, high=work * now / step.low)
    growth = gpus / base.world
    return replace(
        nothing,
        micro_batches=count,
        step_ms=step,
        speedup=speedup,
        efficiency_frac=Band(low=speedup.low / growth, mid=speedup.mid / growth, high=speedup.high / growth),
    )


def _samples(settings: JobSettings) -> int:
    return settings.mbs * settings.micro_batches * settings.dp


def axes_for(job: Job, only: Sequence[str], fixed: Mapping[str, Value]) -> Axes:
    """The space around a job. Degrees stay where they are not all known. UserError where one is fixed that
    nobody knows."""
    shape = job.facts.model
    axes = axes_of(
        job.base,
        micro_batch_known=job.facts.micro_batch_sequences is not None,
        reduces=job.models.model.dp is not None and job.models.model.dp.reductions > 0,
        nvlink_domain=job.nvlink_domain,
        experts=shape.experts if shape is not None else None,
    )
    at = point_of(job.base)
    if not job.degrees_known and (unknown := [k for k in (TP, PP, CP, EP) if k in fixed]):
        raise UserError(f"--fix {unknown[0]}: the parallel degrees of the job are not all known: give --set")
    if MBS in fixed and job.facts.micro_batch_sequences is None:
        raise UserError(f"--fix {MBS}: what it is now is unknown: give --set mbs=N")
    if not job.degrees_known:
        axes = restricted(axes, only=[k for k in FIELD_OF if k not in (TP, PP, CP, EP)], fixed={}, at=at)
    return restricted(axes, only=only, fixed=fixed, at=at)


def tune(
    request: AnalysisRequest,
    *,
    only: Sequence[str] = (),
    fixed: Mapping[str, Value] = MappingProxyType({}),
    gpus: int | None = None,
    gpu_memory_bytes: int | None = None,
    top: int = 10,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Job, Tuning]:
    """Read the captures and search. Raises as read_job, search and scaling_of.

    only: canonical ids; all where none is named. gpus: where the scaling curve ends; None: none is made.
    """
    job = read_job(request, gpu_memory_bytes=gpu_memory_bytes)
    scaling = scaling_of(job, gpus) if gpus is not None else []
    axes = axes_for(job, only, fixed)
    found = search(job, axes)
    say(f"{len(found.tried):,} configurations predicted")
    inputs = [path.name for path in request.captures]
    return job, tuning_of(job, axes, found, top=top, inputs=inputs, scaling=scaling)
