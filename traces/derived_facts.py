"""What follows from the sizes that are known of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_SIZES = ("dp", "tp", "cp", "pp")


def derived_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Replicas, world size, micro-batches and sizes of 1 that follow from given fields of JobFacts.

    World size 64 with tp=8, cp=1, pp=4 is dp=2; 256 sequences by 1 over dp=2 are 128 micro-batches. Where the
    sizes that are given multiply to the world size, no rank is left for the others: dp=8 of 8 ranks is tp=1,
    cp=1 and pp=1. A model without experts has ep=1.
    Raises ValueError, one line, where the sizes contradict one another.
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
        given = {name: job[name] for name in _SIZES if name in job}
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
    given = [job[name] for name in _SIZES if name in job]
    if not given or math.prod(given) != job.get("world_size"):
        return {}
    return dict.fromkeys((name for name in _SIZES if name not in job), 1)
