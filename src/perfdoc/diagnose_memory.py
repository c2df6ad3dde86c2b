"""Memory of all ranks as the contract's analysis."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from perfdoc import diagnosis as d
from perfdoc.analyzers.memory_files import JobMemory
from perfdoc.diagnose_copy import copied
from perfdoc.diagnosis.memory import DeviceMemory, ProcessMemory

_T = TypeVar("_T")


def memory_of(job: JobMemory) -> d.MemoryAnalysis:
    """Every device and every process with its rank."""
    return d.MemoryAnalysis(
        state=job.state,
        reason=job.reason,
        remedy=job.remedy,
        devices=[_with_rank(m, r.rank, DeviceMemory) for r in job.ranks for m in r.devices],
        processes=[_with_rank(r.process, r.rank, ProcessMemory) for r in job.ranks if r.process is not None],
    )


def _with_rank(measured: object, rank: int | None, to: type[_T]) -> _T:
    names = [f.name for f in fields(to) if f.name != "rank"]  # type: ignore[arg-type]
    return copied({**{n: getattr(measured, n) for n in names}, "rank": rank}, to)
