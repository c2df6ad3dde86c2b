"""The record of one verification: what was predicted and measured, what follows, and where it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from perfdoc.compare.facts import Facts
from perfdoc.compare.stored import content_of, decoded
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.manifest import encode
from perfdoc.profiling.state_folder import state_folder
from perfdoc.profiling.whole_file import write_all
from perfdoc.traces import TraceError

MAX_FILE_BYTES = 4_000_000
MAX_RUNS = 200
MIN_REPEATS, MAX_REPEATS = 3, 50  # pairs of runs

Verdict: TypeAlias = Literal["confirmed", "smaller", "larger", "no effect", "opposite", "inconclusive"]
Statistic: TypeAlias = Literal["median", "mean", "quickest"]
Arm: TypeAlias = Literal["before", "after"]
_Ms: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e8, le=1e8)]
_Times: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e8)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a step was to save; null where nothing was said."""

    method: Literal["replay", "model", "ceiling", "bounds", "none"]
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


def checked(record: Record) -> Record:
    """The same record. Raises UserError for figures that no run can have: it could not be read again."""
    try:
        return msgspec.convert(msgspec.to_builtins(record), Record)
    except (msgspec.ValidationError, OverflowError) as error:
        raise UserError(f"there are impossible figures: {error}. Analyse or run again.") from error


def read_record(path: Path) -> Record:
    """One record. Raises TraceError where it is none."""
    remedy = "Give a record that perfdoc verify wrote."
    content = content_of(path, "record", remedy=remedy, most_bytes=MAX_FILE_BYTES)
    return decoded(path, content, Record, "record of perfdoc verify", remedy=remedy)


RECORD_NAME = "verify.json"
"""What it is called in the folder of -o."""
MAX_RECORDS = 5_000
"""Of one folder; the newest by name count."""


def records_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The user's own folder of records; None without a home."""
    return state_folder("verify", environment)


def keep(record: Record, folder: Path) -> Path:
    """Write a record among the others; one of the same content is written once. Raises OSError."""
    content = encode(record)
    digest = hashlib.sha256(content).hexdigest()[:8]
    when = "".join(c for c in record.utc if c.isalnum())
    codes = "-".join("".join(c for c in code[:20] if c.isalnum()) for code in record.codes[:4])
    path = folder / f"{when[:20]}-{codes}-{digest}.json"  # codes may be those of a file that anybody wrote
    write_all({path: content}, folder)
    return path


def records_in(folder: Path) -> list[Record]:
    """The records of a folder and those below it, oldest first; other files are passed over."""
    found = []
    for path in sorted(folder.glob("**/*.json"))[-MAX_RECORDS:]:
        try:
            found.append(read_record(path))
        except TraceError:
            continue
    return sorted(found, key=lambda r: r.utc)


def given_records(folder: Path) -> list[Record]:
    """The records of a folder that a user named. Raises TraceError where it holds none."""
    if not (found := records_in(folder)):
        raise TraceError(folder, "holds no record of perfdoc verify.", "Give a folder of its -o.")
    return found


def of_rule(records: Sequence[Record], code: str) -> list[Record]:
    """Those that tell of one rule, each once."""
    seen: dict[bytes, Record] = {}
    for record in records:
        if code.upper() in record.codes and record.complete:
            seen.setdefault(encode(record), record)
    return list(seen.values())
