"""Memory of all ranks as the contract's analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from perfdoc import diagnosis as d
from perfdoc.analyzers.memory.memory_files import JobMemory
from perfdoc.diagnose_copy import copied
from perfdoc.diagnosis.memory import DeviceMemory, ProcessMemory

_T = TypeVar("_T")


def memory_of(job: JobMemory, ranks: Sequence[d.Rank]) -> d.MemoryAnalysis:
    """Every device and every process with its rank.

    The headroom is there where a capture of the rank says how much memory its GPU has.
    """
    sizes = {r.rank: r.gpu.memory_bytes for r in ranks}
    devices = [_with_rank(m, r.rank, DeviceMemory) for r in job.ranks for m in r.devices]
    return d.MemoryAnalysis(
        state=job.state,
        reason=job.reason,
        remedy=job.remedy,
        devices=[_with_headroom(m, None if m.rank is None else sizes.get(m.rank)) for m in devices],
        processes=[_with_rank(r.process, r.rank, ProcessMemory) for r in job.ranks if r.process is not None],
    )


def _with_headroom(memory: DeviceMemory, total_bytes: int | None) -> DeviceMemory:
    """What the CUDA context and NCCL take is not in it: they hold memory beside PyTorch."""
    if total_bytes is None or memory.peak_reserved_bytes is None or memory.headroom_bytes is not None:
        return memory
    return replace(memory, headroom_bytes=total_bytes - memory.peak_reserved_bytes)


def _with_rank(measured: object, rank: int | None, to: type[_T]) -> _T:
    names = [f.name for f in fields(to) if f.name != "rank"]  # type: ignore[arg-type]
    return copied({**{n: getattr(measured, n) for n in names}, "rank": rank}, to)
