"""Step times that a run logged: steps/rank<N>.jsonl of its directory, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.profiling.logs import StepRecord, read_steps
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool, Table

MAX_STEP_NS = 86_400_000_000_000
"""A step of a day is a damaged line."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedSteps(Table):
    """Steps of one rank by number, each once."""

    step: I64
    duration_ns: I64
    data_ns: I64
    """Part of the duration; -1 unknown."""
    garbage_ns: I64
    """Part of the duration; -1 unknown."""
    profiled: Bool

    @property
    def unprofiled(self) -> Bool:
        """Steps that the profiler left alone. The first one after profiled ones is none of them: ranks that
        are done wait in it for those that still write their traces (seen: 3.6 s in a step of 0.5 s)."""
        after = np.zeros(len(self.step), bool)
        after[1:] = self.profiled[:-1]
        return ~self.profiled & ~after


def read_logged_steps(run_directory: Path | None) -> dict[int, LoggedSteps]:
    """The steps that each rank of a run logged; empty where there is no run directory or no log.

    After a resume a step occurs twice: the later line counts. Lines with impossible times are left out.
    Raises TraceError where a log cannot be read.
    """
    if run_directory is None:
        return {}
    found: dict[int, LoggedSteps] = {}
    for rank, files in RunDirectory(run_directory).files_by_rank("steps").items():
        for file in files:
            if file.suffix == ".jsonl":
                found[rank] = logged_steps(list(read_steps(file)))
    return found


def logged_steps(records: Sequence[StepRecord]) -> LoggedSteps:
    """Records of one rank as columns, by step."""
    last = {r.step: r for r in records if 0 < r.duration_ns < MAX_STEP_NS and 0 <= r.step < 2**62}
    ordered = [last[step] for step in sorted(last)]

    def part(values: Sequence[int | None]) -> I64:
        return np.array([v if v is not None and 0 <= v < MAX_STEP_NS else -1 for v in values], np.int64)

    return LoggedSteps(
        step=np.array([r.step for r in ordered], np.int64),
        duration_ns=np.array([r.duration_ns for r in ordered], np.int64),
        data_ns=part([r.data_ns for r in ordered]),
        garbage_ns=part([r.garbage_ns for r in ordered]),
        profiled=np.array([r.profiled for r in ordered], bool),
    )


def of_the_job(ranks: Mapping[int, LoggedSteps]) -> LoggedSteps | None:
    """Steps that every rank logged, each with the median over ranks; None where there is no log.

    The median, not the slowest: a rank whose step ended late begins the next one late too, and the maximum
    over ranks would count both. A step counts as profiled where any rank profiled it.
    """
    if not ranks:
        return None
    common = None
    for rank in ranks.values():
        common = rank.step if common is None else np.intersect1d(common, rank.step)
    assert common is not None
    rows = [r.take(np.searchsorted(r.step, common)) for r in ranks.values()]
    return LoggedSteps(
        step=common,
        duration_ns=np.median([r.duration_ns for r in rows], axis=0).astype(np.int64),
        data_ns=np.max([r.data_ns for r in rows], axis=0),
        garbage_ns=np.max([r.garbage_ns for r in rows], axis=0),
        profiled=np.any([r.profiled for r in rows], axis=0),
    )
