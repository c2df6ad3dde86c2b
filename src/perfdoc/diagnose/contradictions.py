"""What was given of the job against what the captures show: group sizes, stages, micro-batches, formats, GPU.

A fact that is contradicted counts as unknown, and so does what followed from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.kernel_class.number_format import FP8_FRAC, captured_format
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.pipeline.layout import counted_passes
from perfdoc.analyzers.pipeline.operations import MESSAGES
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.profiling.gpus import gpu_family, gpu_model
from perfdoc.records import dataclass
from perfdoc.results.degrees import Degree
from perfdoc.results.figures import per_cent
from perfdoc.results.quality import Contradiction
from perfdoc.rules.facts.hardware import gpu_of
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import among, unique

_DESCRIBED: Mapping[str, str] = MappingProxyType(
    {
        "TENSOR_MODEL_PARALLEL_GROUP": "tp",
        "CONTEXT_PARALLEL_GROUP": "cp",
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
        "DATA_PARALLEL_GROUP": "dp",
        "EXPERT_MODEL_PARALLEL_GROUP": "ep",
        "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
        **{f"mesh_{name}": name for name in ("tp", "cp", "pp", "ep")},
    }
)
"""Descriptions of groups that are exactly one dimension; most others are parts or unions of some."""
_SETTINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "world_size": ("world_size", "nnodes", "nproc_per_node", "data_parallel_size"),
        "tp": ("tensor_model_parallel_size",),
        "cp": ("context_parallel_size",),
        "pp": ("pipeline_model_parallel_size", "pipeline_model_parallel_layout"),
        "dp": ("data_parallel_size",),
        "ep": ("expert_model_parallel_size",),
        "etp": ("expert_tensor_parallel_size",),
        "micro_batches": ("global_batch_size", "micro_batch_size"),
        "dtype": ("bf16", "fp16", "fp8", "fp4"),
        "gpu_name": (),
    }
)
_FROM_SIZES = ("world_size", "dp", "micro_batches")


def contradictions(
    captures: Sequence[CaptureMeasurement],
    facts: JobFacts,
    configuration: Configuration,
    degrees: Sequence[Degree] = (),
) -> list[Contradiction]:
    """Every given fact that a capture shows otherwise. One that several things show is there once.

    degrees: what all captures together show of the layout.
    """
    ranks = [rank for capture in captures for rank in capture.ranks]
    found: dict[str, Contradiction] = {}
    for c in (
        *_world(captures, ranks, facts),
        *_described(ranks, facts),
        *_pipeline_group(ranks, facts),
        *_degrees(degrees, facts),
        *_communicated(ranks, facts),
        *_micro_batches(ranks, facts),
        *_formats(ranks, facts),
        *_gpus(ranks, facts, configuration),
    ):
        found.setdefault(c.fact, c)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Captures with the facts and settings that they do not contradict."""

    captures: Sequence[CaptureMeasurement]
    job: JobMeasurement
    configuration: Configuration
    contradicted: Sequence[Contradiction]
    """What was given, and counts as unknown."""


def without_contradictions(
    captures: Sequence[CaptureMeasurement], job: JobMeasurement, configuration: Configuration
) -> Settled:
    """What contradicts the captures counts as unknown, and the job is measured anew without it."""
    contradicted = contradictions(captures, job.facts, configuration, job.degrees)
    if contradicted:
        facts, configuration = without(job.facts, configuration, contradicted)
        captures = [replace(c, facts=facts) for c in captures]
        job = measure_job(captures, whole=job.whole)
    return Settled(captures=captures, job=job, configuration=configuration, contradicted=contradicted)


def without(
    facts: JobFacts, configuration: Configuration, found: Sequence[Contradiction]
) -> tuple[JobFacts, Configuration]:
    """What is left to go by."""
    of_facts = {c.fact for c in found if c.fact in _SETTINGS}
    if of_facts & {"world_size", "tp", "cp", "pp", "dp"}:
        of_facts |= {name for name in _FROM_SIZES if facts.sources.get(name) == "derived"}
    settings = {name for c in found for name in c.settings}
    sources = {name: said for name, said in facts.sources.items() if name not in of_facts}
    left: dict[str, Value] = {n: v for n, v in configuration.values.items() if n not in settings}
    unknown: dict[str, Any] = dict.fromkeys(of_facts)
    return (
        replace(facts, **unknown, sources=sources),
        replace(configuration, values=left, unknown=configuration.unknown | settings),
    )


def _of(fact: str, facts: JobFacts, captured: object, evidence: str) -> Contradiction:
    return Contradiction(
        fact=fact,
        given=str(getattr(facts, fact)),
        given_by=facts.sources.get(fact, ""),
        captured=str(captured),
        evidence=evidence,
        settings=list(_SETTINGS[fact]),
    )


def _world(
    captures: Sequence[CaptureMeasurement], ranks: Sequence[RankMeasurement], facts: JobFacts
) -> Iterator[Contradiction]:
    if facts.world_size is None:
        return
    said = {c.world_size for c in captures if c.world_size is not None} - {facts.world_size}
    if said:
        yield _of("world_size", facts, max(said), "by the capture's own count of ranks")
    numbers = [r.device.rank for r in ranks if r.device.rank is not None]
    if numbers and max(numbers) >= facts.world_size:
        yield _of("world_size", facts, f"{max(numbers) + 1} or more", f"by a capture of rank {max(numbers)}")
    if len(ranks) > facts.world_size:
        yield _of("world_size", facts, f"{len(ranks)} or more", "by the number of captured ranks")
    largest = max((g.size or len(g.ranks) for r in ranks for g in r.calls.groups), default=0)
    if largest > facts.world_size:
        yield _of("world_size", facts, f"{largest} or more", f"by a communicator of {largest} ranks")


def _described(ranks: Sequence[RankMeasurement], facts: JobFacts) -> Iterator[Contradiction]:
    sizes: dict[str, set[int]] = defaultdict(set)
    for rank in ranks:
        for group in rank.calls.groups:
            if (size := group.size or len(group.ranks)) and group.description in _DESCRIBED:
                sizes[group.description].add(size)
    for description, several in sizes.items():
        fact = _DESCRIBED[description]
        if getattr(facts, fact) is not None and len(several) == 1 and several != {getattr(facts, fact)}:
            yield _of(fact, facts, min(several), f"in the process group {description}")


def _pipeline_group(ranks: Sequence[RankMeasurement], facts: JobFacts) -> Iterator[Contradiction]:
    sizes = {len(r.pipeline.group) for r in ranks if r.pipeline.group}
    if facts.pp is not None and len(sizes) == 1 and sizes != {facts.pp}:
        source = next(r.pipeline.group_source for r in ranks if r.pipeline.group)
        yield _of("pp", facts, min(sizes), f"in a pipeline ({source})")


def _degrees(degrees: Sequence[Degree], facts: JobFacts) -> Iterator[Contradiction]:
    """Degrees that names or counts of ranks show; that communication has the form of one is no proof."""
    for found in degrees:
        given = getattr(facts, found.name)
        sure = found.strength in ("named", "counted") and found.name in ("tp", "cp", "ep", "pp")
        if sure and None not in (given, found.ranks) and given != found.ranks:
            yield _of(found.name, facts, found.ranks, f"by {found.evidence[0]}")


def _communicated(ranks: Sequence[RankMeasurement], facts: JobFacts) -> Iterator[Contradiction]:
    """Communication whose ranges or groups name its dimension, in a dimension that has one rank, or in groups
    of a size that the dimension has not. (By structure alone nothing is attributed against the layout.)
    Messages over the group of all ranks, as megatron-core's of two stages in one direction, have no size."""
    seen: dict[str, set[int]] = defaultdict(set)
    for rank in ranks:
        calls = rank.calls
        sizes = np.array([g.size or len(g.ranks) for g in calls.groups] + [0], np.int64)
        whole = np.array([g.description == "default_pg" for g in calls.groups] + [False])
        whole |= sizes == (facts.world_size or 0)
        message = among(calls.operation, [i for i, of in enumerate(calls.operations) if of in MESSAGES])
        of_call = np.where(message & whole[calls.group], 0, sizes[calls.group])
        for index in unique(calls.dimension[calls.in_window]).tolist():
            mine = calls.in_window & (calls.dimension == index)
            seen[DIMENSIONS[index]].update(unique(of_call[mine]).tolist())
    for dimension in ("tp", "cp", "ep", "pp"):
        degree, of_size = getattr(facts, dimension), sorted(seen.get(dimension, set()))
        if degree is None or not of_size:
            continue
        evidence = f"by communication for {dimension}"
        if degree == 1 and not (dimension == "tp" and (facts.etp or 1) > 1):
            most = of_size[-1]
            yield _of(dimension, facts, str(most) if most > 1 else "above 1", evidence)
            continue
        most_ranks = degree * (facts.etp or facts.tp or 1) if dimension == "ep" else degree
        most_ranks = max(most_ranks, facts.etp or 1) if dimension == "tp" else most_ranks
        if of_size[-1] > max(most_ranks, 2):
            yield _of(dimension, facts, of_size[-1], f"{evidence}, in groups of {of_size[-1]}")


def _micro_batches(ranks: Sequence[RankMeasurement], facts: JobFacts) -> Iterator[Contradiction]:
    given = facts.micro_batches
    if given is None:
        return
    forwards, numbered = counted_passes([r.pipeline for r in ranks if r.pipeline.state == "measured"])
    if numbered is not None:
        if numbered != given:
            yield _of("micro_batches", facts, numbered, "by the numbers of the passes in a step")
        return
    if forwards is None or facts.pp == 1:
        return
    chunks = facts.vpp
    if (chunks is not None and forwards != chunks * given) or (chunks is None and forwards % given):
        shown = forwards // chunks if chunks and forwards % chunks == 0 else f"{forwards} passes"
        yield _of("micro_batches", facts, shown, f"by {forwards} forward passes in a step")


def _formats(ranks: Sequence[RankMeasurement], facts: JobFacts) -> Iterator[Contradiction]:
    if facts.dtype is None or (found := captured_format(ranks)) is None:
        return
    shown, frac = found
    if facts.dtype == "fp8" and frac < 1 - FP8_FRAC:
        return  # the FP8 GEMMs may be among those whose names do not tell
    if facts.dtype != shown:
        yield _of("dtype", facts, shown, f"by the names of GEMMs ({per_cent(frac)} of their time)")


def _differ(given: str, captured: str) -> bool:
    """Whether their rates do, or generations where no rates are known: a name may leave its memory open."""
    one, other = gpu_model(given), gpu_model(captured)
    if one is None or other is None:
        return len({f and f.architecture for f in map(gpu_family, (given, captured))}) > 1
    return one.tflops != other.tflops or len({one.memory_gbps, other.memory_gbps} - {None}) > 1


def _gpus(
    ranks: Sequence[RankMeasurement], facts: JobFacts, configuration: Configuration
) -> Iterator[Contradiction]:
    kinds = {(r.device.gpu_name, gpu_of(r.device.gpu_name)) for r in ranks}
    if len(kinds) != 1:
        return
    name, gpu = kinds.pop()
    if facts.gpu_name is not None and name is not None and _differ(facts.gpu_name, name):
        yield _of("gpu_name", facts, name, "by the capture, which goes first")
    if gpu is None:
        return
    values = configuration.values
    domain = values.get("nvlink_domain_size")
    fits = not isinstance(domain, int) or gpu.nvlink_domain in (None, domain)
    of_gpu = (
        ("fp8", values.get("fp8") or (facts.dtype == "fp8" or None), gpu.fp8, "no FP8"),
        ("fp4", values.get("fp4"), gpu.multiplies("fp4"), "no FP4"),
        ("fp8_recipe", values.get("fp8_recipe") == "mxfp8" or None, gpu.mxfp8, "no MXFP8"),
        ("nvlink_domain_size", domain, fits, str(gpu.nvlink_domain)),
    )
    for setting, given, able, lacks in of_gpu:
        if given is not None and not able:
            shown = "mxfp8" if setting == "fp8_recipe" else "fp8" if given is True else str(given)
            fact = "dtype" if setting == "fp8" and facts.dtype == "fp8" else setting
            yield Contradiction(
                fact=fact,
                given=shown,
                given_by=facts.sources.get("dtype", "") if fact == "dtype" else "",
                captured=lacks,
                evidence=f"on the GPU, {name}",
                settings=[*_SETTINGS["dtype"], "fp8_recipe"] if setting == "fp8" else [setting],
            )
