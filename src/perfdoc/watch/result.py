"""What `perfdoc watch --json` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from perfdoc.records import dataclass

Cause = Literal[
    "input",
    "garbage",
    "slow_rank",
    "slow_stage",
    "uneven_data",
    "slow_synchronisation",
    "memory_growth",
    "configuration",
    "silent_rank",
    "hang",
    "unknown",
]
State = Literal["fine", "act", "too_little"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to do."""

    cause: Cause
    onset_step: int | None = None
    """The first step of it; None where it was there from the first step that is known."""
    ranks: Sequence[int]
    """The culprits, the first one most; empty where it is all of them."""
    stage: int | None = None
    price_ns: int | None = None
    """What it costs each step; None for growing memory."""
    price_frac: float | None = None
    """Of a step as it is now."""
    said: str
    """What, since when, and for how much, in a sentence or two."""
    action: str
    """What to do next."""
    capture: str = ""
    """A command that shows more; empty where none helps."""


@dataclass(frozen=True, kw_only=True)
class RankNow:
    """One rank over the last steps, in ns of a step; None where it is not known."""

    rank: int
    role: Mapping[str, int]
    own_ns: int | None
    """Without waiting for other ranks."""
    wait_ns: int | None
    data_ns: int | None
    forward_ns: int | None
    backward_ns: int | None
    optimizer_ns: int | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A job as its records show it."""

    schema_version: int
    source: str
    state: State
    reason: str
    """Why it is too little; empty else."""
    first_step: int | None = None
    last_step: int | None = None
    steps: int
    """With a row on every rank, no profiler on."""
    ranks: int
    silent_ranks: Sequence[int] = ()
    step_ns: int | None = None
    """Mean of the last level, without pauses that are far longer than the steps around them."""
    noise_frac: float | None = None
    """Of its steps: scaled median deviation."""
    tokens_per_s: float | None = None
    mfu_frac: float | None = None
    levels: Sequence[tuple[int, int]] = ()
    """(first step, mean ns) of each level of the step time."""
    restarts: Sequence[int] = ()
    """Steps at which a process began again."""
    late: Sequence[RankNow] = ()
    """Ranks over the last steps, those that wait least first; up to eight."""
    typical: RankNow | None = None
    """The median rank."""
    findings: Sequence[Finding] = ()
    """Most expensive first."""
    notes: Sequence[str] = ()
