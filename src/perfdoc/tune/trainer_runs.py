"""Runs of perfdoc's own trainer: the configuration of a run directory, with changes, for a few steps."""

from __future__ import annotations

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
from perfdoc.tune.command import FailedRunError
from perfdoc.tune.result import Row

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
