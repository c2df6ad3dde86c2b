"""What other work took of the machine's CPUs between two moments."""

import os
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Places of idle and iowait among the counters of the first line."""
_COUNTED = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user already."""


@dataclass(frozen=True, kw_only=True)
class CpuTimes:
    """Seconds since some beginning; of all CPUs, and of the processes that this one has waited for."""

    total_s: float
    busy_s: float
    own_s: float


def cpu_times() -> CpuTimes | None:
    """The counters now; None where the system has none (it is not Linux)."""
    try:
        words = _STAT.read_text(encoding="ascii", errors="replace").split("\n", 1)[0].split()[1:]
        ticks = [int(word) for word in words[:_COUNTED]]
        a_second = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    if len(ticks) < _COUNTED or a_second < 1:
        return None
    own = os.times()
    return CpuTimes(
        total_s=sum(ticks) / a_second,
        busy_s=(sum(ticks) - sum(ticks[i] for i in _IDLE)) / a_second,
        own_s=own.children_user + own.children_system + own.user + own.system,
    )


def others_frac(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Share of the CPUs' time between two readings that work of others took; None where it is not known.

    Worked: 2 CPUs for 10 s are 20 s. 14 s of them busy, 10 s by our own children: 4 / 20 = 0.2.
    """
    if before is None or after is None or after.total_s <= before.total_s:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others / (after.total_s - before.total_s)))
