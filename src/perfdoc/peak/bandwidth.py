"""Memory and collective bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from perfdoc.peak.cpus import last_cache_bytes
from perfdoc.peak.team import Team, Timed, Work
from perfdoc.profiling.usable_memory import usable_memory_bytes
from perfdoc.results.figures import size

_MIB = 1 << 20
_ROUND_S, _ROUNDS = 0.05, 8
CUDA_ARRAY_BYTES = 1 << 30
ARRAYS = 3
"""Of a triad; a copy uses two of them."""
_CACHES = 4
"""An array is this many times as large as the last cache, where memory allows: it helps no more then."""
_MEMORY_PART, _MOST_BYTES = 8, 3 << 30
"""All arrays of all ranks together take an eighth of the machine's memory and 3 GiB at most."""
MESSAGE_BYTES: Mapping[str, int] = {"cpu": 16 * _MIB, "cuda": 256 * _MIB}


def array_bytes(*, cache_bytes: int, memory_bytes: int, ranks: int) -> int:
    """Of each array of a rank on a CPU: whole MiB, 16 at least.

    >>> array_bytes(cache_bytes=32 << 20, memory_bytes=64 << 30, ranks=2) >> 20
    128
    """
    room = min(memory_bytes // _MEMORY_PART, _MOST_BYTES) // (ARRAYS * ranks)
    return max(min(_CACHES * cache_bytes, room) // _MIB, 16) * _MIB


def measure_memory(team: Team) -> dict[str, tuple[str, Timed] | str]:
    """Bytes a second of a rank, by kernel, with what ran; a reason where it did not.

    copy: a = b, two arrays of bytes moved. triad: a = b + s·c, three. Neither counts that a CPU reads a line
    before it writes to it, as is usual.
    """
    one = CUDA_ARRAY_BYTES
    if team.kind == "cpu":
        one = array_bytes(
            cache_bytes=last_cache_bytes(), memory_bytes=usable_memory_bytes(), ranks=team.ranks
        )
    arrays: list[Any] = []

    def fill() -> None:
        arrays.extend(torch.ones(one // 4, device=team.device) for _ in range(ARRAYS))

    if reason := team.can(fill):
        return {"copy": reason, "triad": reason}
    a, b, c = arrays
    works: dict[str, tuple[Work, int]] = {
        "copy": (lambda: a.copy_(b), 2 * one),
        "triad": (lambda: torch.add(b, c, alpha=3.0, out=a), 3 * one),
    }
    return {
        name: _timed(team, f"{name} of {size(one)}", work, moved) for name, (work, moved) in works.items()
    }


def measure_collectives(team: Team) -> dict[str, tuple[str, Timed] | str]:
    """Bus bandwidth of collectives over all ranks, bytes a second: what a rank sends over its links when the
    ring moves as little as possible. Of B bytes in all over n ranks, an all-reduce moves 2·B·(n-1)/n, an
    all-gather and an all-to-all B·(n-1)/n.
    """
    n, whole = team.ranks, MESSAGE_BYTES[team.kind]
    if n == 1:
        return {}
    elements = whole // 4 // n * n
    full = torch.ones(elements, dtype=torch.float32, device=team.device)
    part = torch.ones(elements // n, dtype=torch.float32, device=team.device)
    other = torch.empty_like(full)
    moved = elements * 4 * (n - 1) / n
    works: dict[str, tuple[Work, float]] = {
        "all_reduce": (lambda: dist.all_reduce(full, op=dist.ReduceOp.MAX), 2 * moved),
        "all_gather": (lambda: dist.all_gather_into_tensor(other, part), moved),
        "all_to_all": (lambda: dist.all_to_all_single(other, full), moved),
    }
    of = f"of {size(elements * 4)} over {n} ranks"
    return {
        name: _timed(team, f"{name.replace('_', '-')} {of}", work, amount, together=True)
        for name, (work, amount) in works.items()
    }


def _timed(
    team: Team, what: str, work: Work, amount: float, *, together: bool = False
) -> tuple[str, Timed] | str:
    if reason := team.can(work):
        return reason
    return what, team.timed(work, amount, round_s=_ROUND_S, rounds=_ROUNDS, together=together)
