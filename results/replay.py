"""Replay of the step: its error, its critical path, and predicted gains."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.quality import Measured, State

WITHOUT_STRAGGLER = "without_straggler_"
"""A change's key but for its dimension: a rank as fast as its peers."""


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
    """Delays without a cause in the capture. The replay of a GPU leaves them out; that of a rank that trains
    on the CPU has them: late returns from waits."""
    critical_path: dict[str, int]
    """The critical path on this rank, by part."""


@dataclass(frozen=True, kw_only=True)
class Replay(Measured):
    """The unedited replay of a rank or of a job against the measured step."""

    scope: Literal["rank", "job"]
    tasks: int
    steps: int
    """Steps that were replayed; 0 where the window is not made of steps."""
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
    """Nanoseconds of the critical path by part; they sum to replayed_ns."""
    ranks: list[RankReplay]
    window_steps: int | None = None
    """Steps of the window, where only the first of them were replayed."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Time that a change saves, per step (of a window without steps: in the window); below zero what it
    costs."""

    low_ms: float | None
    mid_ms: float | None
    """None for an upper bound."""
    high_ms: float | None
    method: Literal["replay", "model", "ceiling", "none"]
    """replay: simulated task by task. model: simulated pass by pass, with the model of the whole job.
    ceiling: an upper bound, high_ms; not predicted. none: no figure."""
    assumptions: list[str]
    """On `ceiling` and `none` the first one says why."""
    key: str = ""
    """Key of its prediction, of an upper bound that of which this is a part; empty for several changes
    together, or none."""

    @property
    def is_predicted(self) -> bool:
        """Whether it has a middle and a band: neither an upper bound nor no figure."""
        return self.method in ("replay", "model")

    @property
    def size_ms(self) -> float | None:
        """Its middle; of an upper bound that. None without a figure."""
        return self.mid_ms if self.is_predicted else self.high_ms


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
    """Denominator of the fractions: the mean measured step, or, with a step log, the step without the
    profiler and with garbage collections as often as the run makes them."""
    low_ns: int | None
    mid_ns: int | None
    high_ns: int | None
    low_frac: float | None
    mid_frac: float | None
    high_frac: float | None
    replay_error_frac: float | None
    """Largest error of any rank in the unedited replay that it was predicted from. Near 0 by construction for
    CPU ranks."""
    exact: bool
    """False if it changes what training computes (a narrower type)."""
    reason: str
    """Why there is no figure (the change does not apply), or an upper bound only; empty otherwise."""
    left_out: str = ""
    """Why it is none of the things to do: the configuration forbids it, no setting makes just this change, or
    the time may be chance. Empty where it is, if it gains anything."""
    settings: dict[str, bool | int | str | None] = field(default_factory=dict)
    """What to set, by canonical id; empty where no setting is known to make just this change."""


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
    """Changes whose whole band is a gain, simulated together; without trifles, those that change what
    training computes, and those that are left out (`Prediction.left_out`)."""

    accepted: list[str]
    """Keys of the predictions. Of changes that exclude each other, the one with the largest gain."""
    gain: Gain | None
    replay_error_frac: float | None
    reason: str
    """Why there is no gain; empty otherwise."""
    sets: list[GainOfSet] = field(default_factory=list)
    """Every set of the accepted changes with the largest gains, at most four changes."""
    sets_reason: str = ""
    """Why sets are missing, some or all; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class ReplayAnalysis:
    """The unedited replays: of the job where its ranks could be joined, else of every rank alone (Rank.replay
    has those in any case)."""

    state: State
    reason: str
    remedy: str
    error_frac: float | None
    """Largest error of any rank, with its sign. Near 0 by construction for ranks that train on the CPU, where
    it does not show how good predictions are."""
    critical_path: dict[str, int]
    """Nanoseconds by part: of the job's one path, else summed over the ranks' own."""
    job: Replay | None
    """All ranks in one graph; not measured where they could not be joined. None where there is one rank."""
