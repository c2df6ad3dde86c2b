"""What `--verify` asks for: which runs, by what, and where they are kept."""

from __future__ import annotations

import hashlib
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from perfdoc.compare.runs import run_manifest
from perfdoc.compare.stored import content_of, decoded
from perfdoc.compare.verify.advised import arms_of
from perfdoc.compare.verify.rerun import MAX_STEPS, MIN_STEPS, StoppedError, run_once
from perfdoc.knobs.knob import Value
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.whole_file import write_all
from perfdoc.records import dataclass
from perfdoc.results.figures import significant
from perfdoc.run.stop import Stopped
from perfdoc.traces import TraceError
from perfdoc.tune.command import FailedRunError, NoStepTimesError, OwnCommand, own_command
from perfdoc.tune.ranking import verdict_measured
from perfdoc.tune.result import Measuring, Row, Trial, Tuning

STATE = "trials.json"
"""What was measured so far, in the folder of -o."""
RUNS = "trials"
_MAX_STATE_BYTES = 4_000_000


class Runner(Protocol):
    """What runs a configuration."""

    @property
    def words(self) -> str:
        """`perfdoc run`, or the user's command."""

    def run(self, row: Row, path: Path) -> float:
        """A step in milliseconds. Raises FailedRunError where it does not run, StoppedError at a stop."""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    place: int
    round: int
    step_ms: Annotated[float, msgspec.Meta(gt=0, le=1e8)] | None
    failure: str = ""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that were made."""

    plan: str
    """Digest of what is measured: another plan does not go on with these."""
    runs: list[Made] = []


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be measured."""

    rows: Sequence[Row]
    """The unchanged one first."""
    rounds: int
    folder: Path
    how: str
    """What the figures depend on beside the settings: the command, its steps."""

    @property
    def digest(self) -> str:
        """Of all but the number of rounds, which may grow."""
        what = [[(c.knob, c.after) for c in row.changes] for row in self.rows]
        return hashlib.sha256(msgspec.json.encode([what, self.how])).hexdigest()[:16]


def state_of(plan: Plan, *, force: bool = False) -> State:
    """What is there already. UserError where it is of another plan, unless `force`: then it begins anew."""
    path = plan.folder / STATE
    fresh = State(plan=plan.digest)
    if not path.exists() or force:
        return fresh
    content = content_of(path, "record of runs", remedy="Choose another -o.", most_bytes=_MAX_STATE_BYTES)
    found = decoded(path, content, State, "record of perfdoc tune's runs", remedy="Choose another -o.")
    if found.runs and found.plan != plan.digest:
        raise UserError(
            f"{path}: is of other configurations or another command. Choose another -o, or begin anew with "
            "--force."
        )
    return found if found.runs else fresh


def measure(plan: Plan, state: State, runner: Runner, say: Callable[[str], None]) -> tuple[State, bool]:
    """Make the runs that are missing; (what was measured, whether that is all). A stop ends it early.

    Each round runs every configuration once, every second one the other way round, so that drift falls out.
    One that failed is not run again. Raises UserError where the unchanged configuration fails: nothing could
    be compared with it. The record is there before the first run ends: what was stopped in it goes on too.
    """
    write_all({plan.folder / STATE: msgspec.json.encode(state)}, plan.folder)
    try:
        for at in range(plan.rounds):
            for row in plan.rows if at % 2 == 0 else reversed(plan.rows):
                mine = [r for r in state.runs if r.place == row.place]
                if any(r.failure or r.round == at for r in mine):
                    continue
                made = _one(plan, row, at, runner)
                say(f"{_name(row)}, round {at + 1}: {_said(made)}")
                if made.failure and not row.place:
                    raise UserError(f"the unchanged configuration does not run: {made.failure}.")
                state = State(plan=state.plan, runs=[*state.runs, made])
                write_all({plan.folder / STATE: msgspec.json.encode(state)}, plan.folder)
    except (StoppedError, KeyboardInterrupt, Stopped):
        return state, False
    return state, True


def _one(plan: Plan, row: Row, at: int, runner: Runner) -> Made:
    path = plan.folder / RUNS / f"{at + 1:02}-{row.place:02}"
    if path.is_dir() and not path.is_symlink():  # of a run that was stopped
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Made(place=row.place, round=at, step_ms=runner.run(row, path))
    except NoStepTimesError as error:
        if not row.place:  # the first of all: no other would print one either
            raise
        return Made(place=row.place, round=at, step_ms=None, failure=str(error))
    except FailedRunError as error:
        return Made(place=row.place, round=at, step_ms=None, failure=str(error))


def _name(row: Row) -> str:
    return f"#{row.place}" if row.place else "unchanged"


def _said(made: Made) -> str:
    return made.failure or f"{significant(made.step_ms, 4)} ms a step"


def with_trials(found: Tuning, plan: Plan, state: State, *, complete: bool, words: str) -> Tuning:
    """Measured beside predicted, and ranked anew: what was measured by that, what failed, then the others as
    predicted."""
    now = _median(state, 0)
    if now is None or not any(r.place for r in state.runs):  # nothing to compare
        return found
    trials = {r.place: _trial(r, found.step_ms, state, now) for r in plan.rows if _runs(state, r.place)}
    rows = [replace(r, measured=trials.get(r.place)) for r in found.rows]
    order = sorted(rows[1:], key=_rank)
    place = {row.place: i + 1 for i, row in enumerate(order)} | {0: 0}
    ranked = [rows[0], *(replace(row, place=place[row.place]) for row in order)]
    known = [t for at, t in trials.items() if at and t.error_frac is not None]
    errors = [abs(t.error_frac) for t in known if t.error_frac is not None]
    return replace(
        found,
        rows=ranked,
        verdict=verdict_measured(ranked, now),
        measuring=Measuring(
            command=words,
            rounds=plan.rounds,
            complete=complete,
            mean_error_frac=statistics.fmean(errors) if errors else None,
            in_bands=sum(t.in_band is True for t in known),
            of=len(known),
        ),
    )


def _rank(row: Row) -> tuple[int, float]:
    measured = row.measured
    if measured is None:
        return 2, row.step_ms.mid
    return (1, row.step_ms.mid) if measured.step_ms is None else (0, measured.step_ms)


def _runs(state: State, place: int) -> list[Made]:
    return [r for r in state.runs if r.place == place]


def _median(state: State, place: int) -> float | None:
    times = [r.step_ms for r in _runs(state, place) if r.step_ms is not None]
    return statistics.median(times) if times else None


def _trial(row: Row, step_ms: float, state: State, now_ms: float) -> Trial:
    """now_ms: of the unchanged configuration in these runs. A gain of a tenth is a tenth there too."""
    times = [r.step_ms for r in _runs(state, row.place) if r.step_ms is not None]
    failure = next((r.failure for r in _runs(state, row.place) if r.failure), "")
    scale = now_ms / step_ms
    predicted, measured = row.step_ms.mid * scale, None if failure else _median(state, row.place)
    return Trial(
        runs=len(times),
        step_ms=measured,
        low_ms=min(times) if measured is not None else None,
        high_ms=max(times) if measured is not None else None,
        predicted_ms=predicted,
        error_frac=None if measured is None else predicted / measured - 1,
        in_band=None if measured is None else row.step_ms.low * scale <= measured <= row.step_ms.high * scale,
        failure=failure,
    )


@dataclass(frozen=True, kw_only=True)
class TrainerRuns:
    """Runs on this machine, without a profiler."""

    manifest: Manifest
    steps: int
    words: str = "perfdoc run"

    def run(self, row: Row, path: Path) -> float:
        """The median of the steady steps, in milliseconds. Raises as Runner.run."""
        changes: dict[str, Value] = {c.knob: c.after for c in row.changes}
        try:
            arms = arms_of(self.manifest, changes or _SAME, steps=self.steps)
            config = path.with_name(f"{path.name}.yaml")
            config.write_text(arms.after if changes else arms.before, encoding="utf-8")
            return run_once(config, path, arms.world_size).steps.median_ms
        except UserError as error:
            raise FailedRunError(str(error).rstrip(".")) from error


_SAME: dict[str, Value] = {"log_interval": 1_000_000}
"""A change that arms_of accepts, where only the unchanged side is wanted."""


def trainer_runs(path: Path, steps: int) -> TrainerRuns:
    """Of a run directory. Raises UserError where it is none."""
    if not MIN_STEPS <= steps <= MAX_STEPS:
        raise UserError(f"--steps {steps}: give {MIN_STEPS} to {MAX_STEPS}.")
    try:
        return TrainerRuns(manifest=run_manifest(path), steps=steps)
    except TraceError as error:
        raise UserError(
            f"--verify: {path} is no run directory of perfdoc run, which could be run again. Give your own "
            "command: --command 'torchrun … {settings}'"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Checked, before any run is made."""

    runner: TrainerRuns | OwnCommand
    folder: Path
    best: int
    rounds: int
    how: str
    force: bool

    def measured(self, found: Tuning, say: Callable[[str], None]) -> tuple[Tuning, bool]:
        """The result with what was measured, and whether that is all. Raises UserError as measure."""
        rows = [r for r in found.rows if r.place <= self.best]
        if len(rows) < 2:
            raise UserError("--verify: there is no other configuration to run.")
        plan = Plan(rows=rows, rounds=self.rounds, folder=self.folder, how=self.how)
        state = state_of(plan, force=self.force)
        if state.runs:
            say(f"{len(state.runs)} of {len(rows) * self.rounds} runs are there already")
        state, complete = measure(plan, state, self.runner, say)
        return with_trials(found, plan, state, complete=complete, words=self.runner.words), complete


def asked(
    paths: Sequence[str],
    folder: Path,
    best: int,
    command: str | None,
    pattern: str | None,
    rounds: int,
    steps: int,
    force: bool,
) -> Verification:
    """Raises UserError where nothing can be run so."""
    runner: TrainerRuns | OwnCommand
    if command is not None:
        runner, how = own_command(command, pattern), f"{command}\n{pattern}"
    elif pattern is not None:
        raise UserError("--pattern goes with --command.")
    elif len(paths) != 1:
        raise UserError("--verify: give one run directory of perfdoc run, or --command.")
    else:
        runner, how = trainer_runs(Path(paths[0]), steps), f"{steps} steps"
    return Verification(runner=runner, folder=folder, best=best, rounds=rounds, how=how, force=force)
