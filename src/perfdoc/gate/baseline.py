"""Baselines: one small sorted JSON file for each set of facts, made to be kept in git."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfdoc.gate.facts import Facts, differences, fingerprint
from perfdoc.gate.figures import RunFigures
from perfdoc.traces import TraceError
from perfdoc.traces.regular_file import require_regular

MAX_RUNS = 20
"""Older runs leave a baseline when it grows beyond this."""
MAX_FILE_BYTES = 4_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted change of level."""

    utc: str
    reason: str
    before_step_ns: int
    """Mean of the run medians that were replaced."""
    after_step_ns: int
    replaced_runs: int


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted runs of one set of facts."""

    schema_version: Literal[1] = 1
    fingerprint: str
    facts: Facts
    runs: Annotated[list[RunFigures], msgspec.Meta(min_length=1)]
    """Oldest first."""
    promotions: list[Promotion] = []


def read_baselines(folder: Path) -> dict[Path, Baseline]:
    """All baselines of a folder, by path; none where there is no such folder.

    Raises TraceError for a file that is none.
    """
    if not folder.is_dir():
        return {}
    return {path: _read(path) for path in sorted(folder.glob("*.json"))}


def _read(path: Path) -> Baseline:
    require_regular(path)
    remedy = "Restore it from git, or remove it and record again."
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise TraceError(path, "is too large for a baseline.", remedy)
        return msgspec.json.decode(content, type=Baseline)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    except msgspec.MsgspecError as error:
        raise TraceError(path, f"is no baseline: {error}.", remedy) from error


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
    """A baseline with more runs. Raises ValueError where one of them is in it already."""
    old = [] if baseline is None else baseline.runs
    known = {(r.source, r.utc, r.median_step_ns) for r in old}
    for run in runs:
        if (run.source, run.utc, run.median_step_ns) in known:
            raise ValueError(f"{run.source} is recorded already: one run counts once.")
        known.add((run.source, run.utc, run.median_step_ns))
    return Baseline(
        fingerprint=fingerprint(facts) if baseline is None else baseline.fingerprint,
        facts=facts if baseline is None else baseline.facts,
        runs=[*old, *runs][-MAX_RUNS:],
        promotions=[] if baseline is None else baseline.promotions,
    )


def promoted(baseline: Baseline, runs: Sequence[RunFigures], reason: str, utc: str) -> Baseline:
    """A baseline of the new runs alone; what they replace is kept in a line of history."""

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
        fingerprint=baseline.fingerprint,
        facts=baseline.facts,
        runs=list(runs)[-MAX_RUNS:],
        promotions=[*baseline.promotions, step],
    )
