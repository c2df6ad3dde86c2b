"""What is known of the job, as it is published, and its tokens per second."""

from __future__ import annotations

from perfdoc import diagnosis as d
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.knobs.configuration import Configuration

_SAME = (
    *("world_size", "tp", "cp", "pp", "dp", "vpp", "ep", "etp", "sequence_parallel", "micro_batches"),
    *("micro_batch_sequences", "global_batch_sequences", "sequence_length", "dtype", "recompute"),
)
_NO_STEPS = (
    "the windows are not made of whole steps",
    "Name the ranges that are steps with --step-range.",
)
_NO_GPUS = ("how many GPUs the job had is not known", "Give it: --set world_size=64.")
_NO_BATCH = (
    "the batch is not known: {} not given",
    "Give the global batch and the sequence length, such as --set gbs=128 seq=8192.",
)


def job_of(job: JobMeasurement, configuration: Configuration) -> d.Job:
    """Tokens per second and GPU = global batch x sequence length / (mean step time x GPUs): 128 sequences of
    8,192 in 2 s on 64 GPUs are 8,192."""
    facts = job.facts
    batch, length = facts.global_batch_sequences, facts.sequence_length
    step_ns, gpus = job.mfu.step_time_ns, job.mfu.gpus
    tokens = None if batch is None or length is None else batch * length
    reason, remedy = "", ""
    if tokens is None:
        missing = [key for key, value in (("gbs", batch), ("seq", length)) if value is None]
        reason, remedy = _NO_BATCH[0].format(", ".join(missing)), _NO_BATCH[1]
    elif not step_ns:
        reason, remedy = _NO_STEPS
    elif not gpus:
        reason, remedy = _NO_GPUS
    known = {name: getattr(facts, name) for name in _SAME}
    return d.Job(
        **known,
        model=None if facts.model is None else facts.model.name or None,
        dialect=configuration.dialect,
        sources={name: said for name, said in facts.sources.items() if name in (*_SAME, "model")},
        tokens_per_step=tokens,
        tokens_per_s_per_gpu=(
            tokens / (step_ns * 1e-9) / gpus if tokens is not None and step_ns and gpus else None
        ),
        tokens_reason=reason,
        tokens_remedy=remedy,
    )
