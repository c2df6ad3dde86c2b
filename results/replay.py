"""The step run again from the capture: how far off it is, its critical path, and gains predicted from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from perfdoc.results.quality import State


@dataclass(frozen=True, kw_only=True)
class RankReplay:
    """One rank of the replay; lengths from the start of its window to the end of its last work."""

    rank: int | None
    name: str
    measured_ns: int
    replayed_ns: int
    error_frac: float
    """replayed / measured - 1; of a rank that trains on the CPU near 0 by construction."""
    unexplained_ns: int
    """Delays that nothing in the capture explains. The replay of a GPU does not have them; that of a rank
    that trains on the CPU does: late returns from waits."""
    critical_path: dict[str, int]
    """What of the critical path lies on this rank, by part."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The unedited replay of a rank or of a job, held against what was measured."""

    state: State
    reason: str
    remedy: str
    scope: Literal["rank", "job"]
    tasks: int
    steps: int
    """Steps of the window; 0 where it is not made of steps."""
    measured_ns: int | None
    """From the first start of a window to the last end of work, over all ranks."""
    replayed_ns: int | None
    error_frac: float | None
    """replayed / measured - 1."""
    worst_error_frac: float | None
    """Of a single rank, the largest either way."""
    predicts: bool
    """Whether changes may be predicted from it."""
    withheld: str
    """Why not; empty where they may."""
    unexplained_ns: int | None
    critical_path: dict[str, int]
    """Nanoseconds of the chain that ends last, by what they were spent on; they sum to replayed_ns."""
    ranks: list[RankReplay]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Time that a change saves, per step (of a window without steps: in the window); below zero what it
    costs."""

    low_ms: float | None
    mid_ms: float | None
    """None for a ceiling."""
    high_ms: float | None
    method: Literal["replay", "ceiling", "none"]
    """replay: simulated. ceiling: predictions are withheld; the gain is not above high_ms. none: nothing can
    be said."""
    assumptions: list[str]
    """On `ceiling` and `none` the first one says why."""
    key: str = ""
    """Of the prediction that this is the gain of; empty for one of several changes, or of none."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one change would save per step (of a window without steps: in the window)."""

    key: str
    """Stable name, such as `without_gc`."""
    change: str
    """What is changed, with its parameters."""
    scope: Literal["rank", "job"]
    """job: predicted over all ranks together. rank: over each alone."""
    ranks: int
    """How many ranks it was predicted from."""
    gain: Gain
    step_ns: int | None
    """What the fractions are of: the mean measured step, or how long it would be without the profiler and
    with collections as often as the run makes them, where its step log tells."""
    low_ns: int | None
    mid_ns: int | None
    high_ns: int | None
    low_frac: float | None
    mid_frac: float | None
    high_frac: float | None
    replay_error_frac: float | None
    """Of the unedited replay that it was predicted from; the rank that is furthest off. Of CPU ranks near
    0 by construction."""
    exact: bool
    """False where training computes something else with it (a narrower type)."""
    reason: str
    """Why there is no figure (the change does not apply), or a ceiling only; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class GainsAnalysis:
    """Every change that perfdoc knows how to replay, each alone."""

    state: State
    reason: str
    remedy: str
    predictions: list[Prediction]


@dataclass(frozen=True, kw_only=True)
class GainOfSet:
    """A set of changes simulated together (never added); of one change, its prediction."""

    keys: list[str]
    """Of the predictions, in their order."""
    gain: Gain


@dataclass(frozen=True, kw_only=True)
class Combined:
    """Changes that gain something by the lower end of their band, simulated together; none of those after
    which training computes something else."""

    accepted: list[str]
    """Keys of the predictions. Of changes that exclude one another the one that gains most."""
    gain: Gain | None
    replay_error_frac: float | None
    reason: str
    """Why there is no gain; empty otherwise."""
    sets: list[GainOfSet] = field(default_factory=list)
    """Every set of those of the accepted changes that gain most, at most four."""
    sets_reason: str = ""
    """Why sets are missing: those of changes left out, or all; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class ReplayAnalysis:
    """The unedited replays: of the job where its ranks could be joined, else of every rank alone (Rank.replay
    has those in any case)."""

    state: State
    reason: str
    remedy: str
    error_frac: float | None
    """Of the rank that is furthest off, either way. Of ranks that train on the CPU it is near 0 by
    construction, and does not show how good predictions are."""
    critical_path: dict[str, int]
    """Nanoseconds by part: of the job's one path, else summed over the ranks' own."""
    job: Replay | None
    """All ranks in one graph; not measured where they could not be joined. None where there is one rank."""
