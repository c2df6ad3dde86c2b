"""`perfdoc verify RUN --apply …`: follow the advice, measure, and write down what came out."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from perfdoc.analyzers.steps.log import MAX_STEP_NS
from perfdoc.compare.facts import Facts, differences, facts_of, fingerprint, in_words, of_the_machine
from perfdoc.compare.figures import TooFewStepsError, steady
from perfdoc.compare.runs import run_manifest, unprofiled_ns
from perfdoc.compare.verify.advised import (
    NOT_IN_EVERY_STEP,
    Advised,
    Arms,
    Diagnosed,
    advised,
    arms_of,
    diagnosed,
)
from perfdoc.compare.verify.gain import Outcome, judge, of_pairs
from perfdoc.compare.verify.record import (
    MAX_REPEATS,
    MIN_REPEATS,
    RECORD_NAME,
    Arm,
    Record,
    RunTimes,
    Statistic,
    checked,
)
from perfdoc.knobs.settings import read_configuration
from perfdoc.profiling.cpu_times import cpu_times, others_frac
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.manifest import Manifest, encode
from perfdoc.profiling.run_directory import utc_now
from perfdoc.profiling.whole_file import write_all
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent, significant
from perfdoc.run.execution import EXIT_STOPPED, train
from perfdoc.run.prepare import Plan, prepare
from perfdoc.run.stop import Stopped
from perfdoc.version import __version__

_OWN_RUN = re.compile(r"\d{2,3}-(before|after)")


class StoppedError(Exception):
    """A stop was asked for."""


def rounds(
    configurations: Mapping[Arm, Path], *, repeats: int, folder: Path, world_size: int
) -> Iterator[tuple[RunTimes, Manifest]]:
    """Before, after, after, before, before, …: pairs whose order changes, so that drift falls out.

    Raises StoppedError at a stop, UserError where a run fails.
    """
    for pair in range(repeats):
        arms: tuple[Arm, Arm] = ("before", "after") if pair % 2 == 0 else ("after", "before")
        for place, arm in enumerate(arms):
            name = f"{2 * pair + place + 1:02}-{arm}"
            yield _run(configurations[arm], folder / name, arm, pair, world_size)


def startable(arms: Arms) -> None:
    """Check that both sides can be started, before hours are spent on one of them. Raises UserError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("before", arms.before), ("after", arms.after)):
            config = Path(folder) / f"{name}.yaml"
            config.write_text(text, encoding="utf-8")
            try:
                _planned(config, Path(folder) / "run", arms.world_size, dry_run=True)
            except ValueError as error:
                said = str(error).replace(str(config), f"{name}.yaml")
                raise UserError(f"{name}.yaml would not run: {said}") from error


def clear_runs(folder: Path) -> None:
    """Remove the runs of an earlier verification; nothing else."""
    for entry in folder.glob("*-*"):
        if _OWN_RUN.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Times of the steps of one run."""

    median_ms: float
    mean_ms: float | None
    """None: not known, of a diagnosis."""
    deviation_ms: float
    count: int


@dataclass(frozen=True, kw_only=True)
class SteadySteps(Steps):
    """Those of a run directory, without its warm-up."""

    mean_ms: float
    quickest_ms: float
    """Mean of the quickest quarter."""
    warmup_steps: int


def steady_times(path: Path) -> SteadySteps:
    """Figures of a run's steady steps. Raises UserError."""
    times = unprofiled_ns(path)
    try:
        counted = steady(times.tolist())
    except TooFewStepsError as error:
        raise UserError(f"{path}: has {error}. Train longer: more --steps.") from error
    kept = np.sort(times[counted["warmup_steps"] :].astype(np.float64)) / 1e6
    if kept[0] <= 0 or kept[-1] * 1e6 > MAX_STEP_NS:
        raise UserError(f"{path}: has impossible step times.")
    return SteadySteps(
        median_ms=float(np.median(kept)),
        mean_ms=float(kept.mean()),
        quickest_ms=float(kept[: max(len(kept) // 4, 1)].mean()),
        deviation_ms=float(kept.std(ddof=1)),
        count=counted["steps"],
        warmup_steps=counted["warmup_steps"],
    )


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One run of a configuration that came to its end."""

    steps: SteadySteps
    manifest: Manifest
    others_cpu_frac: float | None


def run_once(config: Path, folder: Path, world_size: int) -> Ended:
    """Train without a profiler, into a folder that is not there yet.

    Raises StoppedError at a stop, UserError where the run fails.
    """
    try:
        planned = _planned(config, folder, world_size)
    except ValueError as error:
        raise UserError(f"the run {folder.name}: {error}") from error
    began = cpu_times()
    try:
        outcome = train(planned.command)
    except OSError as error:
        raise UserError(f"the run {folder.name} cannot be started: {error.strerror}.") from error
    others = others_frac(began, cpu_times())
    if outcome.code == EXIT_STOPPED:
        raise StoppedError
    if outcome.code:
        why = outcome.failure.reason if outcome.failure else f"the launcher ended with code {outcome.code}"
        raise UserError(f"the run {folder.name} failed: {why}")
    return Ended(steps=steady_times(folder), manifest=run_manifest(folder), others_cpu_frac=others)


def _run(config: Path, folder: Path, arm: Arm, pair: int, world_size: int) -> tuple[RunTimes, Manifest]:
    ended = run_once(config, folder, world_size)
    steps = ended.steps
    times = RunTimes(
        arm=arm,
        pair=pair,
        directory=folder.name,
        utc=ended.manifest.created_utc,
        steps=steps.count,
        warmup_steps=steps.warmup_steps,
        median_ms=steps.median_ms,
        mean_ms=steps.mean_ms,
        quickest_ms=steps.quickest_ms,
        others_cpu_frac=ended.others_cpu_frac,
    )
    return times, ended.manifest


def _planned(config: Path, folder: Path, world_size: int, *, dry_run: bool = False) -> Plan:
    return prepare(
        config=str(config),
        overrides=(),
        output=folder,
        profiler="none",
        profile_start=1,
        profile_steps=1,
        profile_ranks=None,
        torchrun=("--standalone", f"--nproc-per-node={world_size}"),
        dry_run=dry_run,
    )


MIN_STEPS, MAX_STEPS = 16, 100_000
BUSY_FRAC = 0.1
"""Of the CPUs' time: where other work took more, the record says so."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for."""

    run: Path
    codes: Sequence[str]
    knobs: frozenset[str]
    """Only these of the advised settings; all where none is named."""
    repeats: int
    steps: int
    statistic: Statistic | None
    """None: the median, or the mean where the change is not of every step."""
    output: Path
    note: str
    force: bool


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A verification that was checked, before any run was started."""

    wanted: Wanted
    manifest: Manifest
    diagnosed: Diagnosed
    advised: Advised
    arms: Arms

    @property
    def statistic(self) -> Statistic:
        """Of a run's steps."""
        rare = NOT_IN_EVERY_STEP & set(self.advised.changes)
        return self.wanted.statistic or ("mean" if rare else "median")


def prepared(wanted: Wanted) -> Prepared:
    """Check everything that can be. Raises UserError, or TraceError for what cannot be read."""
    if not MIN_REPEATS <= wanted.repeats <= MAX_REPEATS:
        raise UserError(f"--repeats {wanted.repeats}: give {MIN_REPEATS} to {MAX_REPEATS} pairs of runs.")
    if not MIN_STEPS <= wanted.steps <= MAX_STEPS:
        raise UserError(f"--steps {wanted.steps}: give {MIN_STEPS} to {MAX_STEPS}.")
    manifest = run_manifest(wanted.run)
    filled = wanted.output.exists() and (not wanted.output.is_dir() or any(wanted.output.iterdir()))
    if filled and (not wanted.force or not wanted.output.is_dir()):
        raise UserError(f"{wanted.output}: is there already. Choose another -o, or overwrite with --force.")
    found = diagnosed(wanted.run)
    configuration = read_configuration(wanted.run)
    what = advised(found.diagnosis, wanted.codes, wanted.knobs, configuration)
    arms = arms_of(manifest, what.changes, steps=wanted.steps)
    startable(arms)
    return Prepared(wanted=wanted, manifest=manifest, diagnosed=found, advised=what, arms=arms)


def measured(ready: Prepared, say: Callable[[str], None]) -> Record:
    """Make the runs. The record is written after each of them, so that a stop loses nothing.

    Raises UserError where a run fails, OSError where DIR cannot be written. A stop ends it early: the
    record then is not `complete`.
    """
    wanted, folder = ready.wanted, ready.wanted.output
    configurations: Mapping[Arm, Path] = {arm: folder / f"{arm}.yaml" for arm in ("before", "after")}
    contents = {
        configurations["before"]: ready.arms.before.encode(),
        configurations["after"]: ready.arms.after.encode(),
    }
    if ready.diagnosed.analysed_now is not None:
        contents[folder / "diagnosis.json"] = ready.diagnosed.analysed_now
    write_all(contents, folder)
    clear_runs(folder / "runs")
    runs: list[RunTimes] = []
    facts: Facts = {}
    notes = [wanted.note] if wanted.note else []
    if ready.advised.left_out:
        notes.append(f"left out, since it changes the work of a step: {', '.join(ready.advised.left_out)}")
    stopped = False
    try:
        for times, manifest in rounds(
            configurations, repeats=wanted.repeats, folder=folder / "runs", world_size=ready.arms.world_size
        ):
            if not facts:
                facts = of_the_machine(facts_of(manifest))
                notes += _drift(facts, of_the_machine(facts_of(ready.manifest)))
            runs.append(times)
            step = significant(times.by(ready.statistic), 4)
            say(f"{times.directory}: {step} ms a step ({ready.statistic})")
            write_all({folder / RECORD_NAME: encode(_record(ready, runs, facts, notes, complete=False))})
    except (StoppedError, KeyboardInterrupt, Stopped):  # within a run, or between two
        stopped = True
    record = _record(ready, runs, facts, notes, complete=not stopped)
    write_all({folder / RECORD_NAME: encode(record)})
    return record


def _record(
    ready: Prepared, runs: Sequence[RunTimes], facts: Facts, notes: Sequence[str], *, complete: bool
) -> Record:
    found = of_pairs(runs, ready.statistic)
    outcome = judge(ready.advised.predicted, found)
    if not complete:
        pairs = 0 if found is None else found.samples
        so_far = f"; by these: {outcome.verdict}" if found else ""
        reason = f"stopped after {pairs} of {ready.wanted.repeats} pairs of runs{so_far}"
        outcome = Outcome(verdict="inconclusive", reason=reason)
    record = Record(
        kind="rerun",
        utc=utc_now(),
        perfdoc_version=__version__,
        source=ready.wanted.run.resolve().name,
        diagnosis_sha256=ready.diagnosed.sha256,
        rules=list(ready.advised.rules),
        settings=ready.arms.settings,
        predicted=ready.advised.predicted,
        measured=found,
        verdict=outcome.verdict,
        reason=outcome.reason,
        complete=complete,
        facts=facts,
        fingerprint=fingerprint(facts),
        runs=list(runs),
        notes=[*notes, *_busy(runs)],
    )
    return checked(record)


def _drift(now: Facts, then: Facts) -> list[str]:
    """What is not as it was when the run was made that predicted."""
    differ = differences(then, now)
    if not differ:
        return []
    return [f"not as it was in the run that predicted: {', '.join(in_words(differ)[:5])}"]


def _busy(runs: Sequence[RunTimes]) -> list[str]:
    shares = [r.others_cpu_frac for r in runs if r.others_cpu_frac is not None]
    if not shares or max(shares) < BUSY_FRAC:
        return []
    return [
        f"other work took {per_cent(min(shares), 0)} to {per_cent(max(shares), 0)} of the "
        "machine's CPU time during the runs"
    ]
