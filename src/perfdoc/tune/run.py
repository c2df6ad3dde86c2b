"""`perfdoc tune`: read, search, rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.diagnose.asked import UserError, Work
from perfdoc.knobs.knob import Value
from perfdoc.tune.job import Job, read_job
from perfdoc.tune.ranking import tuning_of
from perfdoc.tune.result import Tuning
from perfdoc.tune.scaling import scaling_of
from perfdoc.tune.search import search
from perfdoc.tune.space import CP, EP, FIELD_OF, MBS, PP, TP, Axes, axes_of, point_of, restricted


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for, checked."""

    work: Work
    config: Path | None
    only: Sequence[str]
    """Canonical ids; all where none is named."""
    fixed: Mapping[str, Value]
    gpus: int | None
    """Where the scaling curve is to end; None: none is made."""
    gpu_memory_bytes: int | None
    top: int
    jobs: int


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


def tune(wanted: Wanted, say: Callable[[str], None] = lambda _: None) -> tuple[Job, Tuning]:
    """Read the captures and search. Raises as read_job, search and scaling_of."""
    job = read_job(wanted.work, wanted.jobs, config=wanted.config, gpu_memory_bytes=wanted.gpu_memory_bytes)
    scaling = scaling_of(job, wanted.gpus) if wanted.gpus is not None else []
    axes = axes_for(job, wanted.only, wanted.fixed)
    found = search(job, axes)
    say(f"{len(found.tried):,} configurations predicted")
    return job, tuning_of(
        job,
        axes,
        found,
        top=wanted.top,
        inputs=[path.name for path in wanted.work.captures],
        scaling=scaling,
    )
