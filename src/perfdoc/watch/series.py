"""The steps of a job's ranks beside each other, as arrays; what is unknown is NaN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.log import MAX_STEP_NS
from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool
from perfdoc.traces.training_logs.lines import TrainingLog

F32: TypeAlias = npt.NDArray[np.float32]

FIELDS = (
    *("duration_ns", "wait_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "garbage_ns"),
    *("cpu_ns", "rank_tokens", "allocated_bytes", "resident_bytes", "tokens"),
)
PHASES = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
MAX_ROWS = 4_096
"""Of a rank that are kept: as many as a step log holds in single steps, twice."""
_LARGEST = 1e18


class RankRows:
    """The rows of one rank as they come; the oldest go."""

    def __init__(self) -> None:
        self._step = np.empty(256, np.int64)
        self._profiled = np.empty(256, bool)
        self._values = np.empty((256, len(FIELDS)), np.float32)
        self._start_ns = np.empty(256, np.int64)
        self._missing = np.empty(256, np.int64)
        """Rows that are gone right before this one."""
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._count = 0
        self.starts: list[tuple[int, Began]] = []
        """The first step of each process, and what it was."""

    def add(self, row: StepRecord) -> None:
        """Take a row. Steps that a restart takes back go; impossible times are unknown."""
        if not 0 <= row.step < 2**62:
            return
        while self._count and self._step[self._count - 1] >= row.step:
            self._count -= 1
        if self._count == len(self._step):
            self._make_room()
        at = self._count
        missing = row.step - max(row.steps, 1) - int(self._step[at - 1]) if at and row.began is None else 0
        self._missing[at] = max(missing, 0)
        self._step[at], self._profiled[at] = row.step, row.profiled
        self._start_ns[at] = row.start_ns if 0 <= row.start_ns < 2**62 else 0
        self._values[at] = [_figure(getattr(row, name), name) for name in FIELDS]
        if row.unseen_waits > 0:
            self._values[at, 1] = np.nan
        if row.began is not None:
            self.starts.append((row.step, row.began))
        self._count += 1

    def _make_room(self) -> None:
        drop = self._count - MAX_ROWS // 2 if self._count >= MAX_ROWS else 0
        size = min(max(2 * (self._count - drop), 256), MAX_ROWS)
        for name in ("_step", "_profiled", "_values", "_start_ns", "_missing"):
            old = getattr(self, name)
            new = np.empty((size, *old.shape[1:]), old.dtype)
            new[: self._count - drop] = old[drop : self._count]
            setattr(self, name, new)
        self._count -= drop

    def missing(self) -> int:
        """Rows that are gone. Where most numbers are left out, the loop counts in larger steps."""
        gone = self._missing[: self._count]
        return int(gone.sum()) if 10 * np.count_nonzero(gone) < len(gone) else 0

    @property
    def step(self) -> I64:
        """Numbers, ascending."""
        return self._step[: self._count]

    def columns(self, rows: I64) -> tuple[F32, Bool, I64]:
        """(values by field, profiled, start) of some rows."""
        return self._values[rows], self._profiled[rows], self._start_ns[rows]


def _figure(value: Any, name: str) -> float:
    if value is None or not 0 <= value < _LARGEST:
        return np.nan
    if name.endswith("_ns") and (value >= MAX_STEP_NS or (name == "duration_ns" and value == 0)):
        return np.nan
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Start:
    """A process of the job began."""

    step: int
    """Its first one."""
    changed: Mapping[str, tuple[object, object]]
    """Settings that are others than those of the process before: (before, now)."""


@dataclass(frozen=True, kw_only=True)
class JobSeries:
    """Steps that every rank wrote."""

    ranks: Sequence[int]
    roles: Sequence[Mapping[str, int]]
    """Of each rank; empty where not known."""
    step: I64
    start_ns: I64
    """Of the first rank."""
    values: Mapping[str, F32]
    """By field: ranks x steps."""
    counted: Bool
    """Steps without a profiler, and not the first after one."""
    starts: Sequence[Start]
    began: Began | None
    silent: Sequence[int] = ()
    """Ranks that stopped writing while others went on."""
    unrecorded: int = 0
    """Ranks of which there is no row. The others could not go on without them: they write elsewhere, or
    have no recorder, or are not that far yet."""
    source: str = "rows"
    mfu_frac: float | None = None

    @property
    def time_ns(self) -> F32:
        """Of each step, the median over ranks; every one of them is to know it."""
        return np.asarray(np.median(self.values["duration_ns"], axis=0), np.float32)

    @property
    def own_ns(self) -> F32:
        """Work of each rank itself: what is left of the step without waiting for others."""
        return np.asarray(self.values["duration_ns"] - self.values["wait_ns"], np.float32)

    def filled(self, values: F32) -> F32:
        """With what each rank had in the last step that is known, else in the first: a few steps of a field
        that a rank has may be unknown, and no mean may be lost by them."""
        known = np.isfinite(values)
        if known.all():
            return values
        at = np.maximum.accumulate(np.where(known, np.arange(values.shape[1]), -1), axis=1)
        at = np.where(at < 0, known.argmax(axis=1)[:, None], at)
        return np.take_along_axis(values, at, axis=1)

    def has(self, name: str) -> bool:
        """Whether every rank knows a field in most steps."""
        return bool(len(self.step)) and bool(np.isfinite(self.values[name]).mean(axis=1).min() > 0.5)


LAGS = 100
"""Steps that a rank may be behind the others before it is called silent."""


def job_series(rows: Mapping[int, RankRows]) -> JobSeries | None:
    """The steps of all ranks that write; None where there are none."""
    rows = {rank: r for rank, r in rows.items() if len(r.step)}
    if not rows:
        return None
    last = {rank: int(r.step[-1]) for rank, r in rows.items()}
    newest = max(last.values())
    behind = {rank for rank in rows if last[rank] < newest - LAGS}
    kept = {rank: rows[rank] for rank in sorted(rows) if rank not in behind}
    # As the job is now: after a restart with fewer ranks the others are not missed.
    told = max((r.starts[-1][1].world_size for r in kept.values() if r.starts), default=max(rows) + 1)
    silent = sorted(rank for rank in behind if rank < told)
    common: I64 | None = None
    for r in kept.values():
        if common is None or not np.array_equal(common, r.step):
            common = r.step if common is None else np.intersect1d(common, r.step, assume_unique=True)
    assert common is not None
    if not len(common):
        return None
    columns = [r.columns(np.searchsorted(r.step, common)) for r in kept.values()]
    profiled = np.any([c[1] for c in columns], axis=0)
    after = np.zeros(len(common), bool)
    after[1:] = profiled[:-1]
    stacked = np.stack([c[0] for c in columns])
    first = next(iter(kept.values()))
    return JobSeries(
        ranks=list(kept),
        roles=[r.starts[-1][1].role if r.starts else {} for r in kept.values()],
        step=common,
        start_ns=columns[0][2],
        values={name: np.ascontiguousarray(stacked[:, :, i]) for i, name in enumerate(FIELDS)},
        counted=~profiled & ~after & np.isfinite(stacked[:, :, 0]).all(axis=0),
        starts=_starts(first.starts),
        began=first.starts[-1][1] if first.starts else None,
        silent=silent,
        unrecorded=max(told - len(kept) - len(silent), 0),
    )


def _starts(starts: Iterable[tuple[int, Began]]) -> list[Start]:
    found: list[Start] = []
    before: Began | None = None
    for step, began in starts:
        changed: dict[str, tuple[object, object]] = {}
        if before is not None:
            old = {"ranks": before.world_size, **before.facts}
            new = {"ranks": began.world_size, **began.facts}
            changed = {k: (old.get(k), new.get(k)) for k in sorted({*old, *new}) if old.get(k) != new.get(k)}
        found.append(Start(step=step, changed=changed))
        before = began
    return found


def of_a_log(log: TrainingLog) -> JobSeries:
    """The steps of a log: one time for all ranks, and no parts of it."""
    steps = log.steps
    unknown = np.full((1, len(steps)), np.nan, np.float32)
    known = {
        "duration_ns": [s.duration_ns for s in steps],
        "allocated_bytes": [np.nan if s.peak_memory_bytes is None else s.peak_memory_bytes for s in steps],
    }
    values = dict.fromkeys(FIELDS, unknown) | {
        name: np.array([column], np.float32) for name, column in known.items()
    }
    shares = [s.mfu_frac for s in steps[-20:] if s.mfu_frac is not None]
    return JobSeries(
        ranks=[0],
        roles=[{}],
        step=np.array([s.step for s in steps], np.int64),
        start_ns=np.zeros(len(steps), np.int64),
        values=values,
        counted=np.ones(len(steps), bool),
        starts=[],
        began=None,
        source=f"log of {log.dialect}",
        mfu_frac=float(np.median(shares)) if shares else None,
    )
