"""What this process may use of the machine's CPUs, of their caches and of its memory."""

import contextlib
import os
from pathlib import Path

from perfdoc.profiling.environment import memory_bytes

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_USUAL_CACHE_BYTES = 32 << 20


def usable_cpus(quota: Path = _QUOTA) -> float:
    """Logical CPUs, or the share of them that a container's quota leaves: `150000 100000` are 1.5."""
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        most, period = quota.read_text(encoding="ascii").split()
        cpus = min(cpus, float(most) / float(period))  # `max` is no number: no quota
    return max(cpus, 0.01)


def last_cache_bytes(caches: Path = _CACHES) -> int:
    """The largest cache of a CPU, as the system says; of a usual server where it says nothing."""
    found = []
    for path in caches.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = path.read_text(encoding="ascii").strip()
            found.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(found, default=_USUAL_CACHE_BYTES)


def usable_memory_bytes(limit: Path = _MEMORY_LIMIT) -> int:
    """The machine's memory, or what a container may have of it; 1 GiB where the system says nothing."""
    whole = memory_bytes() or 1 << 30
    with contextlib.suppress(OSError, ValueError):
        return min(whole, int(limit.read_text(encoding="ascii")))  # `max` is no number: no limit
    return whole
