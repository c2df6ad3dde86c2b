"""What follows from the sizes that are known of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def derived_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Replicas, world size and micro-batches that follow from the fields of JobFacts that are given.

    World size 64 with tp=8, cp=1, pp=4 is dp=2; 256 sequences by 1 over dp=2 are 128 micro-batches.
    Raises ValueError, one line, where the sizes contradict one another.
    """
    found: dict[str, int] = {}
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
    whole, micro = job.get("global_batch_sequences"), job.get("micro_batch_sequences")
    replicas = {**job, **found}.get("dp")
    if whole and micro and replicas:
        if whole % (micro * replicas):
            raise ValueError(f"gbs={whole} does not divide by mbs x dp = {micro * replicas}.")
        count = found["micro_batches"] = whole // (micro * replicas)
        if job.get("micro_batches", count) != count:
            raise ValueError(f"micro_batches={job['micro_batches']} contradicts gbs / (mbs x dp) = {count}.")
    return found
