"""Jobs whose rows of steps are made here, with a fault from a known step on: a chain of barriers, no perfdoc.

A step of a data-parallel job: each rank loads, computes forward and backward, and then all wait for the last
of them and for the transfer; then the optimizer. In a pipeline each stage's time is its share, and the
slowest stage sets the pace. Times are in ms, and scatter as real ones do: a normal part, rare
stalls, a slow drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfdoc.profiling.logs import Began, StepRecord

MS = 1_000_000
GIB = 1 << 30


@dataclass(kw_only=True)
class Job:
    """What a job does without a fault, and the fault."""

    ranks: int
    steps: int = 300
    stages: int = 1
    seed: int = 0
    fault: str = ""
    onset: int = 150
    culprit: int = 0
    """A rank, or a stage."""
    noise: float = 0.02
    size: float = 1.0
    """Of the fault."""
    roles: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> list[list[StepRecord]]:
        """Of each rank."""
        random = np.random.default_rng([self.seed, self.ranks, self.stages])
        ranks, steps = self.ranks, self.steps
        shape = (ranks, steps)
        late = np.zeros(shape, bool)
        late[:, self.onset :] = True
        stage = np.arange(ranks) * self.stages // ranks
        own = np.arange(ranks) == self.culprit
        if self.fault == "slow_stage":
            own = stage == self.culprit

        def about(ms: float) -> Any:
            each = ms * (1 + 0.004 * random.standard_normal((ranks, 1)))
            return each * (1 + self.noise * np.abs(random.standard_normal(shape)))

        data, forward, backward, optimizer, transfer = (about(ms) for ms in (0.5, 30, 60, 5, 6))
        # What all ranks have together: a host's temperature, a switch; slow, and small.
        drift = 1 + 0.003 * np.cumsum(random.standard_normal(steps)) / np.sqrt(steps)
        tokens = np.full(shape, 4096.0)
        garbage = np.zeros(shape)
        garbage[:, ::70] = 8
        memory = 8.0 * GIB + 1e6 * random.standard_normal(shape).cumsum(axis=1) * 0.1
        hit = late & own[:, None]
        if self.fault == "slow_rank":
            backward = np.where(hit, backward * (1 + 0.3 * self.size), backward)
        elif self.fault == "slow_stage":
            forward = np.where(hit, forward * (1 + 0.3 * self.size), forward)
            backward = np.where(hit, backward * (1 + 0.3 * self.size), backward)
        elif self.fault == "input":
            data = np.where(hit, data + 15 * self.size, data)
        elif self.fault == "input_all":
            data = np.where(late, data + 15 * self.size * random.uniform(0.9, 1.1, shape), data)
        elif self.fault == "garbage":
            pauses = hit & (np.arange(steps) % 5 == self.onset % 5)
            garbage = np.where(pauses, 80 * self.size, garbage)
        elif self.fault == "slow_synchronisation":
            transfer = np.where(late, transfer + 12 * self.size, transfer)
        elif self.fault == "uneven_data":
            tokens = np.where(late, 4096 * random.uniform(0.6, 1.4, shape), tokens)
            forward, backward = forward * tokens / 4096, backward * tokens / 4096
        elif self.fault == "memory_growth":
            memory = memory + np.where(own, 1, 0)[:, None] * 8e6 * self.size * np.maximum(
                np.arange(steps) - self.onset + 1, 0
            )
        forward, backward = forward * drift, backward * drift
        backward = backward + garbage
        stalls = random.random(steps) < 0.005
        transfer = np.where(stalls[None, :], transfer + 60, transfer)
        work = data + forward + backward
        # All ranks join the synchronisation when the last one comes; the transfer is the same for all.
        joined = work.max(axis=0) + np.median(transfer, axis=0)
        if self.stages > 1:
            joined = joined * 1.15  # filling and draining
        wait = joined - work
        duration = joined + optimizer
        memory = np.maximum(memory, 0)
        began = [
            Began(
                world_size=ranks,
                device="cuda",
                role={"pp": int(stage[r]), "dp": r % max(ranks // self.stages, 1)} if self.roles else {},
                memory_bytes=80 * GIB,
                facts=dict(self.facts),
            )
            for r in range(ranks)
        ]
        starts = np.cumsum(duration[0]) * MS
        return [
            [
                StepRecord(
                    step=s,
                    start_ns=int(starts[s]),
                    duration_ns=int(duration[r, s] * MS),
                    data_ns=int(data[r, s] * MS),
                    forward_ns=int(forward[r, s] * MS),
                    backward_ns=int(backward[r, s] * MS),
                    optimizer_ns=int(optimizer[r, s] * MS),
                    wait_ns=int(wait[r, s] * MS),
                    garbage_ns=int(garbage[r, s] * MS),
                    collections=int(garbage[r, s] > 0),
                    rank_tokens=int(tokens[r, s]),
                    allocated_bytes=int(memory[r, s]),
                    resident_bytes=4 * GIB,
                    began=began[r] if s == 0 else None,
                )
                for s in range(steps)
            ]
            for r in range(ranks)
        ]


def rank_rows(rows: Sequence[Sequence[StepRecord]]) -> dict[int, Any]:
    """As a reader has them."""
    from perfdoc.watch.series import RankRows

    found: dict[int, Any] = {}
    for rank, of_rank in enumerate(rows):
        found[rank] = RankRows()
        for row in of_rank:
            found[rank].add(row)
    return found
