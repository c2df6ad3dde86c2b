"""What `perfdoc tune` found: tune.json, and what every rendering is made from. docs/tune.md describes it.

Times are milliseconds of one step. None means "not known".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from perfdoc.knobs.writing import Way
from perfdoc.records import dataclass
from perfdoc.results.type_schema import schema_of

SCHEMA_VERSION = "3.1"


@dataclass(frozen=True, kw_only=True)
class Band:
    """A figure with what it may be off by."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Degrees, batch and schedule of a job."""

    gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    vpp: int
    """Model chunks on each stage; 1 without interleaving."""
    micro_batch_size: int | None
    micro_batches: int
    """Of a step on each pipeline."""
    layers: list[int]
    """Of each stage; empty unknown."""
    recompute: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """One setting that differs from the current configuration."""

    knob: str
    """Canonical id."""
    before: Any
    """None where it is not set, or not known."""
    after: Any
    written: str
    """Ready to paste, in the dialect of the job; empty where that framework derives it."""
    way: Way
    """Where that is written; empty as well where nothing is."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one change adds, the changes before it made."""

    knobs: list[str]
    gain_ms: float


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured of a configuration."""

    runs: int
    step_ms: float | None
    """The median of its runs; None where none ended well."""
    low_ms: float | None
    """The quickest and the slowest run."""
    high_ms: float | None
    predicted_ms: float
    """For the machine of these runs: what was measured unchanged, and the predicted gain by its share."""
    error_frac: float | None
    """Predicted over measured, less 1."""
    in_band: bool | None
    failure: str
    """Why it did not run; empty where it did."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration."""

    place: int
    """From 1, by predicted step; 0 is the unchanged configuration."""
    settings: Settings
    changes: list[Change]
    step_ms: Band
    gain_ms: Band
    gain_frac: float
    within_error: bool
    """Whether the band of the gain holds 0."""
    tokens_per_s_per_gpu: float | None
    mfu_frac: float | None
    memory_bytes: int | None
    """Of the fullest GPU."""
    parts: list[Part]
    """By falling gain, each beyond those before it; they sum to the whole gain."""
    assumptions: list[str]
    measured: Trial | None = None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Combinations that are no rows."""

    kind: Literal["impossible", "forbidden", "memory", "not predicted"]
    reason: str
    """Of the first of them."""
    count: int


@dataclass(frozen=True, kw_only=True)
class Search:
    """How it was searched."""

    method: Literal["exhaustive", "sampled"]
    searched: list[str]
    """Settings with more than one value, by canonical id."""
    combinations: int
    allowed: int | None
    """That can be, are allowed and fit; None where not all were looked through."""
    predicted: int
    left_out: list[LeftOut]


@dataclass(frozen=True, kw_only=True)
class MemoryBasis:
    """What the figures of memory rest on."""

    basis: Literal["measured", "formula", "unknown"]
    """measured: the formula held to a measured peak. formula: it alone."""
    reason: str
    gpu_bytes: int | None
    limit_bytes: int | None
    """More is not offered, unless it is no more than now."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How the measured figures were made."""

    command: str
    """`perfdoc run`, or the user's own."""
    rounds: int
    complete: bool
    mean_error_frac: float | None
    """Mean of the absolute errors of the changed configurations."""
    in_bands: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The whole result."""

    schema_version: str = SCHEMA_VERSION
    perfdoc_version: str
    verdict: str
    """One sentence."""
    inputs: list[str]
    """Names of the files, without their folders."""
    model: str | None
    dialect: str | None
    step_ms: float
    """Measured."""
    model_error_frac: float
    ranks_captured: int
    stages_composed: int
    stages: int
    rows: list[Row]
    """The unchanged configuration first, then the best ones."""
    memory: MemoryBasis
    search: Search
    measuring: Measuring | None
    notes: list[str]


def value_words(value: object) -> str:
    """As people write a setting's value: none, true, 8."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def those_run(rows: Sequence[Row]) -> list[tuple[Row, Trial]]:
    """Those that ended well: the unchanged one, then by rising median, as `rows` are."""
    return [(r, r.measured) for r in rows if r.measured is not None and r.measured.step_ms is not None]


def is_faster(one: Trial, other: Trial) -> bool:
    """Whether each of its runs was quicker than every run of the other."""
    return one.high_ms is not None and other.low_ms is not None and one.high_ms < other.low_ms


def to_take(rows: Sequence[Row]) -> Row | None:
    """Of those that were run the quickest whose runs were all quicker than any unchanged one. Where none was
    run, the best row whose band holds no loss, else the best that gains. None: keep what is."""
    if ran := those_run(rows):
        (_, now), *others = ran
        return next((row for row, trial in others if is_faster(trial, now)), None)
    gains = [r for r in rows if r.place and r.gain_ms.mid > 0]
    return next((r for r in gains if not r.within_error), gains[0] if gains else None)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of tune.json."""
    return schema_of(Tuning)
