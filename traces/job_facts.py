"""What is known of a job beside its captures: layout, model, precision, FLOPs; and who said so.

A run directory says it in run.json. For a foreign trace the user may, with `--set` or `--config`. What is
neither given nor recorded stays None: no analysis may put a default in its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc.profiling.distributed.groups import ProcessGroup
from perfdoc.profiling.manifest import Manifest, ModelShape, PeakKind, read_manifest
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.records import dataclass

_FACTORS = ("dp", "tp", "cp", "pp")


def derived_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Replicas, world size, micro-batches and sizes of 1 that follow from given fields of JobFacts.

    World size 64 with tp=8, cp=1, pp=4 is dp=2; 256 sequences by 1 over dp=2 are 128 micro-batches. Where the
    sizes that are given multiply to the world size, no rank is left for the others: dp=8 of 8 ranks is tp=1,
    cp=1 and pp=1. A model without experts has ep=1.
    Raises ValueError, one line, where the sizes contradict each other.
    """
    found = _sizes_of_one(job)
    job = {**job, **found}
    sizes = [job.get(name) for name in ("tp", "cp", "pp")]
    shards = math.prod(s for s in sizes if s)
    if "world_size" in job and all(sizes):
        world = job["world_size"]
        if world % shards:
            raise ValueError(f"world_size={world} does not divide by tp x cp x pp = {shards}.")
        found["dp"] = world // shards
        if job.get("dp", found["dp"]) != found["dp"]:
            raise ValueError(f"dp={job['dp']} contradicts world_size={world} over tp x cp x pp = {shards}.")
    elif "dp" in job and all(sizes):
        found["world_size"] = job["dp"] * shards
    elif "world_size" in job:
        given = {name: job[name] for name in _FACTORS if name in job}
        if job["world_size"] % math.prod(given.values()):
            named = " x ".join(f"{name}={size}" for name, size in given.items())
            raise ValueError(f"world_size={job['world_size']} does not divide by {named}.")
    if "ep" not in job and "model" in job and job["model"].experts is None:
        found["ep"] = 1
    whole, micro = job.get("global_batch_sequences"), job.get("micro_batch_sequences")
    replicas = {**job, **found}.get("dp")
    if whole and micro and replicas:
        if whole % (micro * replicas):
            raise ValueError(f"gbs={whole} does not divide by mbs x dp = {micro * replicas}.")
        count = found["micro_batches"] = whole // (micro * replicas)
        if job.get("micro_batches", count) != count:
            raise ValueError(f"micro_batches={job['micro_batches']} contradicts gbs / (mbs x dp) = {count}.")
    return found


def _sizes_of_one(job: Mapping[str, Any]) -> dict[str, int]:
    given = [job[name] for name in _FACTORS if name in job]
    if not given or math.prod(given) != job.get("world_size"):
        return {}
    return dict.fromkeys((name for name in _FACTORS if name not in job), 1)


_BATCH = frozenset({"model", "global_batch_sequences", "sequence_length"})
_SIZES = frozenset({"world_size", "tp", "cp", "pp"})
_FOLLOWS_FROM: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "flops_per_step": _BATCH,
        "flops_convention": _BATCH | {"flops_per_step"},
        "peak_flops_per_second": frozenset({"dtype"}),
        "peak_source": frozenset({"dtype", "peak_flops_per_second"}),
        "peak_kind": frozenset({"dtype", "peak_flops_per_second"}),
        "dp": _SIZES,
        "micro_batches": _SIZES | {"dp", "global_batch_sequences", "micro_batch_sequences"},
    }
)
"""What a fact was made from: where that is given anew, the old one holds no more."""


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Facts of one job; None (or empty) is unknown. Sizes of parallel groups are counts of ranks."""

    world_size: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    dp: int | None = None
    """Replicas of the model: world size / (tp x cp x pp)."""
    vpp: int | None = None
    """Model chunks per pipeline stage; 1 without interleaving."""
    ep: int | None = None
    etp: int | None = None
    sequence_parallel: bool | None = None
    micro_batches: int | None = None
    """Micro-batches of a step on each pipeline."""
    micro_batch_sequences: int | None = None
    global_batch_sequences: int | None = None
    sequence_length: int | None = None
    """Tokens of one sequence."""
    dtype: str | None = None
    """Of the GEMMs: fp32, bf16, fp16, fp8."""
    recompute: str | None = None
    """`none`, `selective` or `full`."""
    model: ModelShape | None = None
    flops_per_step: int | None = None
    """Model FLOPs of one step over all ranks."""
    flops_convention: str | None = None
    peak_flops_per_second: float | None = None
    """Peak of one device in `dtype`."""
    peak_source: str | None = None
    peak_kind: PeakKind | None = None
    """Of a peak that run.json says."""
    gpu_name: str | None = None
    """Of devices that their capture does not name."""
    measured_ceilings: MeasuredCeilings | None = None
    """What `perfdoc run` measured before training."""
    cores: int | None = None
    """Logical CPUs of all machines, where each has as many as the first."""
    torch_version: str | None = None
    """PyTorch's, with what its builder put behind it: `2.7.1+cu128`."""
    nccl_version: str | None = None
    """`2.26.2`."""
    groups: tuple[ProcessGroup, ...] = ()
    """Every process group of the run."""
    run_directory: Path | None = None
    left_out: tuple[str, ...] = ()
    """Keys of the user's file that say several things, or nothing that can be read."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Who said so, by field: `run.json`, `--set`, `--config FILE`."""

    def updated(self, given: JobFacts) -> JobFacts:
        """These facts, with every one that `given` knows in its place; what followed from others is worked
        out again. Raises ValueError, one line, where sizes contradict each other.
        """
        known = {f.name: v for f in fields(given) if (v := getattr(given, f.name)) not in (None, ())}
        sources = {**self.sources, **given.sources}
        stale = {
            name
            for name, inputs in _FOLLOWS_FROM.items()
            if name not in known and not inputs.isdisjoint(known)
        }
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        merged = {**own, **known, **dict.fromkeys(stale)}
        derived = derived_sizes({n: v for n, v in merged.items() if v is not None})
        new = {n: v for n, v in derived.items() if merged.get(n) is None}
        sources = {n: s for n, s in sources.items() if n not in stale} | dict.fromkeys(new, "derived")
        return JobFacts(**{**merged, **new, "sources": sources})


def common_facts(several: Sequence[JobFacts]) -> JobFacts:
    """What all of them say alike; the rest is unknown."""
    if not several:
        return JobFacts()
    first = several[0]
    alike = {
        f.name: getattr(first, f.name)
        for f in fields(first)
        if f.name != "sources" and all(getattr(s, f.name) == getattr(first, f.name) for s in several[1:])
    }
    return JobFacts(**alike, sources={n: s for n, s in first.sources.items() if n in alike})


def facts_beside(capture: Path) -> JobFacts:
    """The facts of the run directory that a capture lies in, which record() makes without any; else none.

    Raises TraceError where run.json is there and cannot be used.
    """
    folder = capture.resolve().parent
    manifest = folder.parent / "run.json"
    if folder.name != "traces" or not manifest.is_file():
        is_recorded = folder.name == "traces" and any((folder.parent / "steps").glob("rank*.jsonl"))
        return JobFacts(run_directory=folder.parent if is_recorded else None)
    return facts_of_manifest(read_manifest(manifest), manifest.parent)


def facts_of_manifest(manifest: Manifest, run_directory: Path | None = None) -> JobFacts:
    """What run.json says."""
    layout = manifest.layout
    found: dict[str, Any] = {
        "world_size": layout.world_size,
        "tp": layout.tensor,
        "cp": layout.context,
        "pp": layout.pipeline,
        "dp": layout.data,
        "vpp": layout.virtual_pipeline or 1,
        "ep": layout.expert,
        "etp": layout.expert_tensor,
        "sequence_parallel": layout.sequence_parallel,
        "micro_batches": layout.micro_batches,
        "micro_batch_sequences": manifest.batch.micro_sequences,
        "global_batch_sequences": manifest.batch.global_sequences,
        "sequence_length": manifest.model.sequence_length,
        "dtype": manifest.dtype,
        "recompute": _recompute(manifest),
        "model": manifest.model,
        "flops_per_step": manifest.flops.per_step,
        "flops_convention": manifest.flops.convention,
        "peak_flops_per_second": manifest.hardware.peak_flops_per_second,
        "peak_source": manifest.hardware.peak_source or None,
        "peak_kind": manifest.hardware.peak_kind,
        "measured_ceilings": manifest.hardware.measured,
        "cores": (manifest.hardware.cpu_count or 0) * manifest.hardware.nodes or None,
        "torch_version": manifest.versions.get("torch"),
        "nccl_version": manifest.versions.get("nccl"),
        "groups": layout.groups,
    }
    sources = {name: "run.json" for name, value in found.items() if value not in (None, ())}
    return JobFacts(**found, run_directory=run_directory, sources=sources)


def _recompute(manifest: Manifest) -> str | None:
    value = manifest.config.get("recompute_granularity")
    if value is None:
        return None
    return "none" if value.value is None else str(value.value)
