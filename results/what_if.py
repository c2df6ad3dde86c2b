"""What the step of a job would take if some of its operations took as long as their peers do."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass

CauseKind = Literal[
    "slow_rank",
    "late_host",
    "long_stage",
    "uneven_data",
    "uneven_experts",
    "slow_link",
    "late_stage",
    "not_captured",
]


@dataclass(frozen=True, kw_only=True)
class WhatIfPart:
    """What is lost to one stage, rank, replica or kind of operation."""

    name: str
    """`stage 3`, `rank 0`, `replica 1`, `backward`."""
    slowdown: float
    """Step with only its own durations kept and all others at their peers', over the ideal step."""
    without_ns: int
    """Step with its durations at its peers' and all others as recorded."""


@dataclass(frozen=True, kw_only=True)
class WhatIfCause:
    """Why the step is longer than its ideal."""

    kind: CauseKind
    ranks: list[int] = field(default_factory=list)
    """Global ranks that it is about; empty where it is nobody's in particular. Of `not_captured` those of
    which the one may be that all wait for, of `late_stage` that one replica waits for."""
    captures: list[str] = field(default_factory=list)
    """Of those without a number where they are: `device 0 of process 7 in b.json`."""
    stage: int | None = None
    ratio: float | None = None
    """How many times as long as peers; of uneven data the longest micro-batch of a step over the mean, of
    uneven experts the busiest rank's between two exchanges of tokens."""
    peers: int
    """Ranks, of a slow link links, of a late stage replicas, that it was compared with; 0 of experts where it
    is not known, and of late hosts that are so in turn, each at places of its own."""
    step_ns: int
    """The step without it, and with all else as recorded."""
    saved_ns: int
    """Of the replayed step, mean over steps."""
    low_ns: int
    """A tenth of the steps gain less; of ranks late in turn in one step what their sums alone say."""
    high_ns: int
    """A tenth of the steps gain more; of uneven data the most that it is where ranks were not captured."""
    even_ns: int | None = None
    """Of a long stage the step with its excess spread over all stages: layers move, none goes."""
    recurrence_frac: float = 1.0
    """Steps in which it shows."""
    correlation: float | None = None
    """Of forward and backward lengths over micro-batches and replicas; of uneven data alone."""
    note: str = ""
    """What is not certain of it; empty nothing."""
    since: str = ""
    """The step from which on it shows; empty where it shows in all, or comes and goes."""
    kinds_of_wait: list[str] = field(default_factory=list)
    """Of `not_captured` the collectives in which ranks wait (its saving is an upper bound); of `slow_link`
    what is slow on it."""

    @property
    def is_in_turn(self) -> bool:
        """Whether they are hosts that are late in turn, each at places of its own: no peers tell."""
        return self.kind == "late_host" and not self.peers


@dataclass(frozen=True, kw_only=True)
class WhatIfAnalysis:
    """The job replayed from the operations of all its ranks (Lin et al. 2025, arXiv 2505.05713)."""

    state: Literal["measured", "not_measured"]
    reason: str = ""
    remedy: str = ""
    steps: int = 0
    """Replayed together, on all ranks."""
    ranks: int = 0
    schedule: str = ""
    """Of a pipeline as its messages show it, `1F1B`; empty where there is none, or it is not known."""
    pp: int | None = None
    vpp: int | None = None
    """Chunks of a stage."""
    micro_batches: int | None = None
    measured_ns: int | None = None
    """Mean step."""
    step_ns: int | None = None
    """The same replayed: without launch delays between operations."""
    ideal_ns: int | None = None
    """Replayed with every operation as long as its peers: passes at their mean over ranks, micro-batches and
    steps, communication at its median once all have come."""
    slowdown: float | None = None
    """step over ideal."""
    by_stage: list[WhatIfPart] = field(default_factory=list)
    by_replica: list[WhatIfPart] = field(default_factory=list)
    by_rank: list[WhatIfPart] = field(default_factory=list)
    """Largest first, at most 32."""
    by_kind: list[WhatIfPart] = field(default_factory=list)
    causes: list[WhatIfCause] = field(default_factory=list)
    """The one that costs most first."""
    notes: list[str] = field(default_factory=list)


def no_what_if(reason: str, remedy: str = "") -> WhatIfAnalysis:
    """Where nothing was replayed."""
    return WhatIfAnalysis(state="not_measured", reason=reason, remedy=remedy)
