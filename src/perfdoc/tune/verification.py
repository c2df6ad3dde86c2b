"""What `--verify` asks for: which runs, by what, and where they are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.compare.runs import run_manifest
from perfdoc.compare.verify.record import VerifyError
from perfdoc.compare.verify.rounds import run_once
from perfdoc.compare.verify.start import arms_of
from perfdoc.diagnose.asked import UserError
from perfdoc.knobs.knob import Value
from perfdoc.profiling.manifest import Manifest
from perfdoc.traces import TraceError
from perfdoc.tune.command import FailedRunError, OwnCommand, own_command
from perfdoc.tune.result import Row, Tuning
from perfdoc.tune.trials import Plan, measure, state_of, with_trials

MIN_STEPS, MAX_STEPS = 16, 100_000


@dataclass(frozen=True, kw_only=True)
class TrainerRuns:
    """Runs on this machine, without a profiler."""

    manifest: Manifest
    steps: int
    debug: bool = False
    words: str = "perfdoc run"

    def run(self, row: Row, path: Path) -> float:
        """The median of the steady steps, in milliseconds. Raises as Runner.run."""
        changes: dict[str, Value] = {c.knob: c.after for c in row.changes}
        try:
            arms = arms_of(self.manifest, changes or _SAME, steps=self.steps)
            config = path.with_name(f"{path.name}.yaml")
            config.write_text(arms.after if changes else arms.before, encoding="utf-8")
            return run_once(config, path, arms.world_size, debug=self.debug).steps.median_ms
        except (VerifyError, TraceError) as error:
            raise FailedRunError(str(error).rstrip(".")) from error


_SAME: dict[str, Value] = {"log_interval": 1_000_000}
"""A change that arms_of accepts, where only the unchanged side is wanted."""


def trainer_runs(path: Path, steps: int, *, debug: bool) -> TrainerRuns:
    """Of a run directory. Raises UserError where it is none."""
    if not MIN_STEPS <= steps <= MAX_STEPS:
        raise UserError(f"--steps {steps}: give {MIN_STEPS} to {MAX_STEPS}.")
    try:
        return TrainerRuns(manifest=run_manifest(path), steps=steps, debug=debug)
    except TraceError as error:
        raise UserError(
            f"--verify: {path} is no run directory of perfdoc run, which could be run again. Give your own "
            "command: --command 'torchrun … {settings}'"
        ) from error


@dataclass(frozen=True, kw_only=True)
class CommandRuns:
    """The user's own command as a Runner."""

    command: OwnCommand

    @property
    def words(self) -> str:
        """As it was given."""
        return self.command.command

    def run(self, row: Row, path: Path) -> float:
        """One run; its output beside the others'. Raises as Runner.run."""
        return self.command.run(row.changes, path.with_name(f"{path.name}.log"))


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Checked, before any run is made."""

    runner: TrainerRuns | CommandRuns
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
    debug: bool,
) -> Verification:
    """Raises UserError where nothing can be run so."""
    runner: TrainerRuns | CommandRuns
    if command is not None:
        runner, how = CommandRuns(command=own_command(command, pattern)), f"{command}\n{pattern}"
    elif pattern is not None:
        raise UserError("--pattern goes with --command.")
    elif len(paths) != 1:
        raise UserError("--verify: give one run directory of perfdoc run, or --command.")
    else:
        runner, how = trainer_runs(Path(paths[0]), steps, debug=debug), f"{steps} steps"
    return Verification(runner=runner, folder=folder, best=best, rounds=rounds, how=how, force=force)
