"""Jobs whose every configuration has a true step time, by the planted engine, and what `tune` chooses.

The search is the command's own, from captures to the first row. The engine lays each configuration anew from
the model's layers (tests/planted/layered.py) and shares no code with the job's model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.diagnose.asked import parse_request
from perfdoc.knobs.knob import Value
from perfdoc.profiling.manifest import ModelShape
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from perfdoc.tune.job import Job
from perfdoc.tune.result import Settings
from perfdoc.tune.run import axes_for, tune
from perfdoc.tune.space import MBS, PP, TP, VPP, points, settings_of
from tests.planted.job import planted_steps
from tests.planted.layered import LayeredModel
from tests.planted.spec import JobSpec

_SEQUENCE, _HIDDEN, _VOCABULARY = 1_024, 4_096, 32_000
_ROOMY_BYTES = 1 << 50
"""Memory is not planted, so nothing is left out for it."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A job as it is captured, and the settings that are searched."""

    spec: JobSpec
    shape: ModelShape
    only: tuple[str, ...]
    fixed: Mapping[str, Value] = field(default_factory=dict)


def _shape(layers: int, ffn: int) -> ModelShape:
    return msgspec.structs.replace(
        known_models()["llama3-8b"],
        name="planted",
        layers=layers,
        hidden_size=_HIDDEN,
        ffn_hidden_size=ffn,
        vocabulary=_VOCABULARY,
        sequence_length=_SEQUENCE,
    )


def _job(shape: ModelShape, *, forward_ns: int, across: float = 1.0, **layout: int) -> JobSpec:
    """Every kernel takes what its FLOPs do, the loss a tenth of the output layer's; 2 bytes a weight."""
    heads, groups = shape.attention_heads * shape.kv_channels, shape.query_groups * shape.kv_channels
    layer = _HIDDEN * (2 * heads + 2 * groups + 3 * shape.ffn_hidden_size)
    output = forward_ns * 1.1 * _HIDDEN * _VOCABULARY / layer
    model = LayeredModel(
        layers=shape.layers,
        forward_ns=forward_ns,
        backward_ns=2 * forward_ns,
        output_ns=(round(output), round(2 * output)),
        activation_bytes=2 * _SEQUENCE * _HIDDEN,
        weight_bytes=2 * (shape.layers * layer + 2 * _HIDDEN * _VOCABULARY),
        across=across,
    )
    return JobSpec(model=model, steps=1, **layout)  # type: ignore[arg-type]


def _proof(shape: ModelShape, only: tuple[str, ...], **job: Any) -> Proof:
    return Proof(spec=_job(shape, **job), shape=shape, only=only)


BUBBLES = _proof(
    _shape(24, 4_096), (PP, VPP, MBS), forward_ns=150_000, pp=4, dp=2, micro_batches=4, sequences=4
)
"""8 ranks of a node: 4 stages, few micro-batches."""
TENSORS = _proof(
    _shape(16, 2_048),
    (TP, PP, VPP, MBS),
    forward_ns=900_000,
    across=6.0,
    **{"tp": 4, "pp": 2, "dp": 2, "micro_batches": 8, "sequences": 2},
)
"""16 ranks of two nodes: activations gathered and scattered in every layer."""
REPLICAS = _proof(
    _shape(32, 14_336),
    (PP, VPP, MBS),
    forward_ns=500_000,
    across=8.0,
    **{"tp": 8, "pp": 4, "dp": 2, "micro_batches": 8, "sequences": 4},
)
"""64 ranks of eight nodes: gradients between nodes, and micro-batches of one sequence are launch-bound."""


def captured_as(proof: Proof, **layout: int) -> Proof:
    """The same job, another configuration of it captured."""
    return replace(proof, spec=replace(proof.spec, **layout))  # type: ignore[arg-type]


def standing_for_all(proof: Proof) -> list[int]:
    """Every rank; of 64 the first two and the last of each replica's tensor group, on every stage."""
    spec = proof.spec
    if spec.world_size <= _ALL_CAPTURED:
        return list(range(spec.world_size))
    each = spec.world_size // spec.pp
    beside = sorted({d * spec.tp + t for d in range(spec.dp) for t in (0, 1, spec.tp - 1)})
    return [stage * each + r for stage in range(spec.pp) for r in beside]


_ALL_CAPTURED = 16
PROOFS: Mapping[str, Proof] = {
    "8 ranks, bubbles": BUBBLES,
    "16 ranks, tensor parallelism": TENSORS,
    "64 ranks, replicas": REPLICAS,
}
OTHERWISE: Mapping[str, Proof] = {
    "tp=8, pp=1": captured_as(TENSORS, tp=8, pp=1, dp=2, micro_batches=8),
    "tp=8, pp=2, mbs=4": captured_as(TENSORS, tp=8, pp=2, dp=1, micro_batches=8, sequences=4),
    "tp=2, pp=4": captured_as(TENSORS, tp=2, pp=4),
    "tp=2, pp=2, vpp=2, mbs=4": captured_as(TENSORS, tp=2, dp=4, vpp=2, micro_batches=2, sequences=4),
}
"""The second job, the same configurations searched from others of them."""
QUICK = replace(BUBBLES, only=(PP, VPP))
"""A part of the first, quickly laid."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was chosen, and what would have been best."""

    configurations: int
    best_ns: float
    best: JobSettings
    chosen_ns: float
    chosen: JobSettings
    predicted_ns: float
    """Of the choice."""
    unchanged_ns: float
    near: int
    """Configurations within 2 % of the best."""

    @property
    def regret_frac(self) -> float:
        """By how much the choice is truly slower than the best."""
        return self.chosen_ns / self.best_ns - 1


def outcome(proof: Proof, ranks: Collection[int], folder: Path) -> Outcome:
    """Tune from the captures of these ranks, and look up the true times."""
    paths = planted_steps(proof.spec, ranks).write(folder)
    request = replace(parse_request([str(p) for p in paths], replay=False), given=facts_of(proof))
    job, found = tune(request, only=proof.only, fixed=proof.fixed, gpu_memory_bytes=_ROOMY_BYTES, top=1)
    row = found.rows[-1] if found.rows[-1].gain_ms.mid > 0 else found.rows[0]
    every = plantable(job, proof)
    truth = {s: true_ns(proof.spec, s) for s in every}
    best = min(truth, key=lambda s: truth[s])
    (chosen,) = (s for s in every if _same(s, row.settings))
    return Outcome(
        configurations=len(every),
        best_ns=truth[best],
        best=best,
        chosen_ns=truth[chosen],
        chosen=chosen,
        predicted_ns=row.step_ms.mid * 1e6,
        unchanged_ns=truth[job.base],
        near=sum(ns <= 1.02 * truth[best] for ns in truth.values()),
    )


def plantable(job: Job, proof: Proof) -> list[JobSettings]:
    """Every combination of the searched settings that is a job, predicted or not."""
    found: dict[JobSettings, None] = {}
    for point in points(axes_for(job, proof.only, proof.fixed)):
        try:
            settings = settings_of(job.base, point)
            spec_with(proof.spec, settings)
        except ValueError:
            continue
        found[settings] = None
    return list(found)


def spec_with(spec: JobSpec, settings: JobSettings) -> JobSpec:
    """The job with these settings. ValueError where it cannot be laid."""
    return replace(
        spec,
        tp=settings.tp,
        pp=settings.pp,
        dp=settings.dp,
        vpp=settings.vpp,
        micro_batches=settings.micro_batches,
        sequences=settings.mbs,
    )


def true_ns(spec: JobSpec, settings: JobSettings) -> float:
    """The step that the engine lays with these settings."""
    return _laid_ns(spec_with(spec, settings))


@cache
def _laid_ns(spec: JobSpec) -> float:
    return planted_steps(spec).step_ns


def facts_of(proof: Proof) -> JobFacts:
    """As a user gives them."""
    spec = proof.spec
    known = {key: getattr(spec, key) for key in ("world_size", "tp", "cp", "dp", "pp", "ep", "vpp")}
    return JobFacts(
        **known,
        micro_batches=spec.micro_batches,
        micro_batch_sequences=spec.sequences,
        global_batch_sequences=spec.sequences * spec.micro_batches * spec.dp,
        sequence_length=_SEQUENCE,
        dtype="bf16",
        model=proof.shape,
    )


def _same(one: JobSettings, row: Settings) -> bool:
    return (one.tp, one.pp, one.dp, one.vpp, one.mbs) == (
        row.tp,
        row.pp,
        row.dp,
        row.vpp,
        row.micro_batch_size,
    )
