"""`perfdoc tune`: read, search, rank."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import SHORT_NAMES, catalogue
from perfdoc.knobs.values import Opaque, read_value
from perfdoc.profiling.errors import UserError
from perfdoc.tune.job import Job, read_job
from perfdoc.tune.ranking import tuning_of
from perfdoc.tune.result import Tuning
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
    # What the configuration has on already, and the capture does not show, is no change that can be made.
    free = [k for k in FIELD_OF if job.setting(k)[1] is not True]  # 1 equals True
    axes = restricted(axes, only=free, fixed={}, at=at)
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
    gpu_memory_bytes: int | None = None,
    top: int = 10,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Job, Tuning]:
    """Read the captures and search. Raises as read_job and search.

    only: canonical ids; all where none is named.
    """
    job = read_job(request, gpu_memory_bytes=gpu_memory_bytes)
    axes = axes_for(job, only, fixed)
    found = search(job, axes)
    say(f"{len(found.tried):,} configurations predicted")
    inputs = [path.name for path in request.captures]
    return job, tuning_of(job, axes, found, top=top, inputs=inputs)
