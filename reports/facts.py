"""Facts about the run: hardware, model, layout, batch, what was analysed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from perfdoc.reports.names import shorten
from perfdoc.reports.units import count, plural, size
from perfdoc.results import Diagnosis, Job

_SIZES = ("tp", "cp", "pp", "vpp", "dp", "ep", "etp")
_BATCH = (
    ("global_batch_sequences", "sequences a step"),
    ("micro_batch_sequences", "a micro-batch"),
    ("micro_batches", "micro-batches a pipeline"),
    ("sequence_length", "tokens a sequence"),
)


def facts_of(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """(what, value, who said so) of everything that is known; what is not known has no row."""
    yield from _hardware(diagnosis)
    if diagnosis.job is not None:
        yield from _job(diagnosis.job)
    mfu = diagnosis.mfu
    if mfu.peak_flops is not None:
        yield "dense peak", f"{mfu.peak_flops / 1e12:,.0f} TFLOP/s a GPU", shorten(mfu.peak_source, 96)
    if mfu.flops_per_step is not None:
        yield "model FLOPs a step", f"{mfu.flops_per_step:,}", shorten(mfu.flops_source, 96)
    kinds = Counter(rank.window.kind for rank in diagnosis.ranks)
    if kinds:
        steps = {rank.window.steps for rank in diagnosis.ranks}
        of = f", {plural(max(steps), 'step')} a rank" if max(steps) else ""
        yield "analysed", ", ".join(f"{kind} of {plural(n, 'rank')}" for kind, n in kinds.items()) + of, ""
    tools = Counter(i.tool_version for i in diagnosis.inputs if i.tool_version)
    if tools:
        yield "captured with", ", ".join(shorten(version, 64) for version in list(tools)[:4]), ""
    yield "perfdoc", shorten(diagnosis.perfdoc_version, 64), ""


def _hardware(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    gpus = Counter((r.gpu.name, r.gpu.sm_count, r.gpu.memory_bytes) for r in diagnosis.ranks)
    for (name, sms, memory), ranks in list(gpus.items())[:4]:
        parts = [shorten(name, 64) if name else "model unknown"]
        parts += [f"{sms} SMs"] if sms else []
        parts += [size(memory)] if memory else []
        yield "device", f"{plural(ranks, 'rank')}: " + ", ".join(parts), ""


def _job(job: Job) -> Iterator[tuple[str, str, str]]:
    def said(*fields: str) -> str:
        return shorten(", ".join(dict.fromkeys(job.sources[f] for f in fields if f in job.sources)), 96)

    if job.model is not None:
        yield "model", shorten(job.model, 64), said("model")
    if job.world_size is not None:
        yield "ranks of the job", count(job.world_size), said("world_size")
    sizes = {key: getattr(job, key) for key in _SIZES if getattr(job, key) is not None}
    layout = [f"{key} {value}" for key, value in sizes.items()]
    if job.sequence_parallel is not None:
        layout.append("sequence parallel" if job.sequence_parallel else "no sequence parallel")
    if layout:
        yield "layout", ", ".join(layout), said(*sizes, "sequence_parallel")
    batch = {key: f"{getattr(job, key):,} {words}" for key, words in _BATCH if getattr(job, key) is not None}
    if batch:
        yield "batch", ", ".join(batch.values()), said(*batch)
    if job.dtype is not None:
        yield "matrix products", shorten(job.dtype, 48), said("dtype")
    if job.recompute is not None:
        yield "recompute", shorten(job.recompute, 48), said("recompute")
    if job.tokens_per_step is not None:
        yield "tokens a step", count(job.tokens_per_step), ""
