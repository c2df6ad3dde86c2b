"""`perfdoc verify RUN --apply …`: follow the advice, measure, and write down what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfdoc.compare.facts import Facts, differences, facts_of, fingerprint, in_words, of_the_machine
from perfdoc.compare.runs import run_manifest
from perfdoc.compare.verify.advised import NOT_IN_EVERY_STEP, Advised, advised
from perfdoc.compare.verify.gain import Outcome, judge, of_pairs
from perfdoc.compare.verify.record import (
    RECORD_NAME,
    Arm,
    Record,
    RunTimes,
    Statistic,
    VerifyError,
    checked,
    encode,
)
from perfdoc.compare.verify.rounds import StoppedError, clear_runs, rounds, startable
from perfdoc.compare.verify.start import Arms, Diagnosed, arms_of, diagnosed
from perfdoc.knobs.settings import read_configuration
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.run_directory import utc_now
from perfdoc.profiling.whole_file import write_all
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent, significant
from perfdoc.run.stop import Stopped
from perfdoc.version import __version__

MIN_REPEATS, MAX_REPEATS = 3, 50
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
    debug: bool = False


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
    """Check everything that can be. Raises VerifyError, or TraceError for what cannot be read."""
    if not MIN_REPEATS <= wanted.repeats <= MAX_REPEATS:
        raise VerifyError(f"--repeats {wanted.repeats}: give {MIN_REPEATS} to {MAX_REPEATS} pairs of runs.")
    if not MIN_STEPS <= wanted.steps <= MAX_STEPS:
        raise VerifyError(f"--steps {wanted.steps}: give {MIN_STEPS} to {MAX_STEPS}.")
    manifest = run_manifest(wanted.run)
    filled = wanted.output.exists() and (not wanted.output.is_dir() or any(wanted.output.iterdir()))
    if filled and (not wanted.force or not wanted.output.is_dir()):
        raise VerifyError(f"{wanted.output}: is there already. Choose another -o, or overwrite with --force.")
    found = diagnosed(wanted.run)
    configuration = read_configuration(wanted.run)
    what = advised(found.diagnosis, wanted.codes, wanted.knobs, configuration)
    arms = arms_of(manifest, what.changes, steps=wanted.steps)
    startable(arms)
    return Prepared(wanted=wanted, manifest=manifest, diagnosed=found, advised=what, arms=arms)


def measured(ready: Prepared, say: Callable[[str], None]) -> Record:
    """Make the runs. The record is written after each of them, so that a stop loses nothing.

    Raises VerifyError where a run fails, OSError where DIR cannot be written. A stop ends it early: the
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
            configurations,
            repeats=wanted.repeats,
            folder=folder / "runs",
            world_size=ready.arms.world_size,
            debug=wanted.debug,
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
