"""The record of one verification: what was predicted, what was measured, and what follows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from perfdoc.gate.facts import Facts
from perfdoc.traces import TraceError
from perfdoc.traces.regular_file import require_regular
from perfdoc.verify.errors import VerifyError

MAX_FILE_BYTES = 4_000_000
MAX_RUNS = 200

Verdict: TypeAlias = Literal["confirmed", "smaller", "larger", "no effect", "opposite", "inconclusive"]
Statistic: TypeAlias = Literal["median", "mean", "quickest"]
Arm: TypeAlias = Literal["before", "after"]
_Ms: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e8, le=1e8)]
_Times: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e8)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a step was to save; null where nothing was said."""

    method: Literal["replay", "ceiling", "bounds", "none"]
    """replay: simulated. ceiling: no more than high_ms. bounds: of several rules together, no less than the
    best of them and no more than all. none: nothing was predicted."""
    low_ms: _Ms | None
    mid_ms: _Ms | None
    high_ms: _Ms | None
    assumptions: list[str] = []


class RulePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule said."""

    code: str
    title: str
    predicted: Predicted


class ChangedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was changed, as text; null: not known."""

    knob: str
    before: str | None
    after: str | None


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the trainer: its steady steps, in milliseconds."""

    arm: Arm
    pair: _Count
    """Which pair it belongs to, from 0."""
    directory: str
    """Its folder's name."""
    utc: str
    steps: _Count
    warmup_steps: _Count
    median_ms: _Times
    mean_ms: _Times
    quickest_ms: _Times
    """Mean of the quickest quarter of the steps."""
    others_cpu_frac: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    """Share of the machine's CPU time that other work took during the run; null where it is not known."""

    def by(self, statistic: Statistic) -> float:
        """The figure that counts."""
        return {"median": self.median_ms, "mean": self.mean_ms, "quickest": self.quickest_ms}[statistic]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a step saved, with an interval."""

    method: Literal["pairs of runs", "two runs"]
    statistic: Statistic
    """Of a run's steady steps."""
    before_ms: _Times
    gain_ms: _Ms
    low_ms: _Ms
    high_ms: _Ms
    confidence: float
    samples: _Count
    """Pairs, or steps of the shorter of two runs."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One verification, as it is kept."""

    schema_version: Literal[1] = 1
    kind: Literal["rerun", "two runs"]
    """rerun: by `perfdoc verify RUN`. two runs: by `perfdoc verify BEFORE AFTER`."""
    utc: str
    perfdoc_version: str
    source: str
    """Name of the run whose advice was followed."""
    diagnosis_sha256: str
    """Of the diagnosis.json that predicted."""
    rules: Annotated[list[RulePrediction], msgspec.Meta(min_length=1, max_length=200)]
    settings: list[ChangedSetting]
    other_differences: list[ChangedSetting] = []
    """Settings that differ as well and that no rule here asked for."""
    predicted: Predicted
    """Of all of `settings` together."""
    measured: Measured | None
    verdict: Verdict
    reason: str
    complete: bool
    """Whether all runs were made that were asked for."""
    facts: Facts
    """Hardware, versions and device of the runs, by the gate's names."""
    fingerprint: str
    """Of the facts."""
    runs: Annotated[list[RunTimes], msgspec.Meta(max_length=MAX_RUNS)] = []
    """In the order in which they were made."""
    notes: list[str] = []

    @property
    def codes(self) -> tuple[str, ...]:
        """Of its rules."""
        return tuple(rule.code for rule in self.rules)


def encode(record: Record) -> bytes:
    """As it is written: indented, ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def checked(record: Record) -> Record:
    """The same record. Raises VerifyError for figures that no run can have: it could not be read again."""
    try:
        return msgspec.convert(msgspec.to_builtins(record), Record)
    except (msgspec.ValidationError, OverflowError) as error:
        raise VerifyError(f"there are impossible figures: {error}. Analyse or run again.") from error


def read_record(path: Path) -> Record:
    """One record. Raises TraceError where it is none."""
    require_regular(path)
    remedy = "Give a record that perfdoc verify wrote."
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise TraceError(path, "is too large for a record.", remedy)
        return msgspec.json.decode(content, type=Record)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(path, f"is no record of perfdoc verify: {error}.", remedy) from error
