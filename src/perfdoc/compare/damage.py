"""What of a run cannot be read, is missing, was cut off, or is of another job: it is counted, never dropped.

Steps that are gone may be the slow ones. So a run is judged whole, or with as much gone as was allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfdoc.analyzers.steps.log import MAX_STEP_NS
from perfdoc.profiling.logs import StepRecord, read_steps
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent
from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.lines import TrainingLog

MAX_MEANS = 10_000_000
"""Steps of a row of means: more is a damaged line."""


class DamagedRunError(TraceError):
    """A run of which too much is gone to be judged: not a mistake of the command, and no verdict."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Steps of one run that are gone, by why."""

    steps: int
    """That there should be."""
    unreadable: int = 0
    """Their time is none: no number, negative, zero, or over a day."""
    missing: int = 0
    """Between the first and the last one; of every rank that should have them."""
    cut: int = 0
    """From the last one to the announced end."""
    mixed: str = ""
    """Why the file is of several jobs; empty where it is of one."""

    @property
    def gone_frac(self) -> float:
        """Share of the steps that is gone."""
        gone = self.unreadable + self.missing + self.cut
        return min(gone / max(self.steps, gone), 1.0) if gone else 0.0

    def in_words(self) -> str:
        """The counts, as one reads them after the run's name."""
        said = [
            (self.unreadable, "an unreadable time (no number, negative, zero, or over a day)"),
            (self.missing, "no time at all"),
            (self.cut, "not begun where the log ends"),
        ]
        parts = [f"{count:,} of {self.steps:,} steps: {what}" for count, what in said if count]
        return "; ".join([self.mixed, *parts] if self.mixed else parts)


def require_whole(path: Path, damage: Damage, incomplete_frac: float) -> list[str]:
    """A note on what is gone, where it is no more than this share of the steps. Raises DamagedRunError."""
    if damage.mixed:
        raise DamagedRunError(path, f"{damage.in_words()}.", "Give one job: cut the file in two.")
    if not damage.gone_frac:
        return []
    if damage.gone_frac > incomplete_frac:
        remedy = (
            f"{per_cent(damage.gone_frac)} of its steps are gone; the slow ones may be among them. Give the "
            "whole run, or --incomplete with the share that may be gone."
        )
        raise DamagedRunError(path, f"{damage.in_words()}.", remedy)
    return [f"{path.name}: {damage.in_words()}; let by --incomplete"]


def of_a_log(log: TrainingLog) -> Damage:
    """What is gone of a log of another trainer; counts are of steps, not of lines that stand for several."""
    every = log.interval
    last = max([*(s.step for s in log.steps), *log.unreadable_steps])
    cut = 0
    if log.announced_steps is not None and not log.ended_as_planned:
        cut = log.announced_steps - last
        cut = cut if cut >= every else 0
    missing = every * log.missing_lines
    return Damage(
        steps=every * (len(log.steps) + len(log.unreadable_steps)) + missing + cut,
        unreadable=every * len(log.unreadable_steps),
        missing=missing,
        cut=cut,
        mixed=log.mixed,
    )


def of_a_directory(directory: RunDirectory, world_size: int, ends: object = None) -> Damage:
    """What is gone of the step logs of a run directory. ends: its last step, where that is known.

    Raises TraceError where one cannot be read.
    """
    ranks = {
        rank: [record for file in files if file.suffix == ".jsonl" for record in read_steps(file)]
        for rank, files in directory.files_by_rank("steps").items()
    }
    again = [rank for rank, records in ranks.items() if _begins_again(records)]
    latest = {rank: {r.step: r for r in records} for rank, records in ranks.items()}
    covered = {rank: {n for r in of.values() for n in _numbers(r)} for rank, of in latest.items()}
    every = set().union(*covered.values()) if latest else set()
    unreadable = {step for of in latest.values() for step, record in of.items() if not _readable(record)}
    silent = world_size - len(ranks)
    missing = {step for step in every if any(step not in of for of in covered.values())}
    first, last = (min(every), max(every)) if every else (0, 0)
    between = last - first + 1 - len(every) if every else 0
    mixed = f"rank {again[0]} begins again at its first step" if again else ""
    if silent > 0 and ranks:
        missing = every  # what the other ranks waited for is not known
    return Damage(
        steps=max(last - first + 1 if every else 0, ends if isinstance(ends, int) else 0),
        unreadable=len(unreadable - missing),
        missing=len(missing) + between,
        cut=max(ends - last, 0) if isinstance(ends, int) else 0,
        mixed=mixed,
    )


def _numbers(record: StepRecord) -> range:
    """The steps of a row, which may be one of means."""
    return range(record.step - min(max(record.steps, 1), MAX_MEANS) + 1, record.step + 1)


def _begins_again(records: Sequence[StepRecord]) -> bool:
    """A run that resumed goes on at a later step than its first."""
    return any(r.step <= records[0].step for r in records[1:])


def _readable(record: StepRecord) -> bool:
    parts = [record.data_ns, record.garbage_ns]
    # A part is measured by itself, and may end a moment after the step's own clock was read.
    return 0 < record.duration_ns < MAX_STEP_NS and all(p is None or 0 <= p < MAX_STEP_NS for p in parts)
