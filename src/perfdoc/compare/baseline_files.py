"""Baselines: one small sorted JSON file for each set of facts, made to be kept in git."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfdoc.analyzers.steps.slower import MOST_RUNS
from perfdoc.compare.facts import Facts, differences, fingerprint
from perfdoc.compare.figures import RunFigures, StepNs, twice
from perfdoc.compare.stored import content_of, decoded
from perfdoc.traces import TraceError

MAX_RUNS = MOST_RUNS
"""Runs leave a baseline when it grows beyond this: the oldest after the first ANCHOR_RUNS."""
ANCHOR_RUNS = 5
"""First runs of a level, which stay: what many small losses are seen against."""
MAX_FILE_BYTES = 4_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted change of level."""

    utc: str
    reason: str
    before_step_ns: StepNs
    """Mean of the run medians that were replaced."""
    after_step_ns: StepNs
    replaced_runs: Annotated[int, msgspec.Meta(ge=1, le=MAX_RUNS)]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted runs of one set of facts."""

    schema_version: Literal[1] = 1
    fingerprint: str
    facts: Facts
    runs: Annotated[list[RunFigures], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]
    """Oldest first."""
    promotions: list[Promotion] = []


def read_baselines(folder: Path) -> dict[Path, Baseline]:
    """All baselines of a folder, by path; none where there is no such folder.

    Raises TraceError for a file that is none, and for two files of equal facts.
    """
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise TraceError(folder, "is not a folder of baselines.", "Give the folder that holds the file.")
    found: dict[Path, Baseline] = {}
    holders: dict[str, Path] = {}
    for path in sorted(folder.glob("*.json")):
        found[path] = read_baseline(path)
        other = holders.setdefault(found[path].fingerprint, path)
        if other != path:
            what = f"has the same facts as {other.name}: the baseline is ambiguous."
            raise TraceError(path, what, "Remove one of the two.")
    return found


def read_baseline(path: Path) -> Baseline:
    """One file. Raises TraceError for one that is no baseline."""
    remedy = "Restore it from git, or remove it and record again."
    content = content_of(path, "baseline", remedy=remedy, most_bytes=MAX_FILE_BYTES)
    baseline = decoded(path, content, Baseline, "baseline", remedy=remedy)
    if baseline.fingerprint != fingerprint(baseline.facts):
        raise TraceError(path, "was changed by hand: its fingerprint is not that of its facts.", remedy)
    if (same := twice(baseline.runs)) is not None:
        what = f"holds one run twice, as {same[0].source} and {same[1].source}."
        raise TraceError(path, what, remedy)
    return baseline


def encode(baseline: Baseline) -> bytes:
    """Sorted and indented, so that a change of one run is a change of its lines."""
    return msgspec.json.format(msgspec.json.encode(baseline, order="sorted"), indent=1) + b"\n"


def find(
    baselines: Mapping[Path, Baseline], facts: Facts, ignored: Sequence[str] = ()
) -> tuple[Path, Baseline] | None:
    """The baseline of equal facts; where only ignored facts tell several apart, the one that agrees most."""
    fits = [
        (len(differences(b.facts, facts)), path)
        for path, b in baselines.items()
        if not differences(b.facts, facts, ignored)
    ]
    return (path := min(fits)[1], baselines[path]) if fits else None


def nearest(
    baselines: Mapping[Path, Baseline], facts: Facts, ignored: Sequence[str] = ()
) -> tuple[Path, Baseline] | None:
    """The baseline whose facts differ least."""
    if not baselines:
        return None
    path = min(baselines, key=lambda p: (len(differences(baselines[p].facts, facts, ignored)), p))
    return path, baselines[path]


def file_for(folder: Path, facts: Facts) -> Path:
    """Where a new baseline goes: named by its label, where it has one that makes a file name."""
    digits = fingerprint(facts)
    label = facts.get("label")
    name = f"{label}-{digits}" if isinstance(label, str) and _NAME.fullmatch(label) else digits
    return folder / f"{name}.json"


def with_runs(baseline: Baseline | None, facts: Facts, runs: Sequence[RunFigures]) -> Baseline:
    """A baseline with more runs; refuse_known has been asked before."""
    old = [] if baseline is None else baseline.runs
    return Baseline(
        fingerprint=fingerprint(facts) if baseline is None else baseline.fingerprint,
        facts=facts if baseline is None else baseline.facts,
        runs=_kept([*old, *runs]),
        promotions=[] if baseline is None else baseline.promotions,
    )


def _kept(runs: list[RunFigures]) -> list[RunFigures]:
    """The first runs of the level and the newest ones."""
    if len(runs) <= MAX_RUNS:
        return runs
    return [*runs[:ANCHOR_RUNS], *runs[ANCHOR_RUNS - MAX_RUNS :]]


def refuse_known(path: Path, baseline: Baseline, runs: Sequence[RunFigures], why: str) -> None:
    """Raise TraceError where one of the runs is in the baseline already, under whatever name."""
    for run in runs:
        for known in baseline.runs:
            if known.is_same_run(run):
                name = "" if known.source == run.source else f", as {known.source}"
                raise TraceError(path, f"holds {run.source} already{name}: {why}.", "Give other runs.")


def promoted(baseline: Baseline, facts: Facts, runs: Sequence[RunFigures], reason: str, utc: str) -> Baseline:
    """A baseline of the new runs alone, with their facts; what they replace is kept in a line of history."""

    def mean(of: Sequence[RunFigures]) -> int:
        return round(sum(r.median_step_ns for r in of) / len(of))

    step = Promotion(
        utc=utc,
        reason=reason,
        before_step_ns=mean(baseline.runs),
        after_step_ns=mean(runs),
        replaced_runs=len(baseline.runs),
    )
    return Baseline(
        fingerprint=fingerprint(facts),
        facts=facts,
        runs=_kept(list(runs)),
        promotions=[*baseline.promotions, step],
    )
