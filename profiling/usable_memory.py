"""How much memory this process may still take: the machine's, its container's, its own limit's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

with contextlib.suppress(ImportError):  # Windows has none
    import resource

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
    "": ("memory.max", "memory.current", "inactive_file", "active_file"),
}
"""By controller of version 1 and of version 2 of control groups: limit, what is used, and what of that, by
memory.stat, holds files and can be read again."""


def usable_memory_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Memory that is free, or the share of it that a container or a limit of the process leaves. What holds
    files counts as free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        free = next((int(e.split()[1]) * 1024 for e in lines if e.startswith("MemAvailable:")), free)
    with contextlib.suppress(NameError, OSError):
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        free = free if limit == resource.RLIM_INFINITY else min(free, limit)
    return max(min((free, *_of_groups(proc, groups))), 0)


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What each control group that the process is in leaves, and each above it."""
    mine = []
    with contextlib.suppress(OSError):
        mine = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    for line in mine:
        _, controllers, path = line.split(":", 2)
        controller = "memory" if "memory" in controllers.split(",") else controllers
        if controller not in _FILES:
            continue
        inside = PurePosixPath(path.strip("/"))
        # In a container the path may be the machine's, and the group itself what is mounted.
        for folder in {inside, *inside.parents, PurePosixPath()}:
            with contextlib.suppress(OSError, ValueError):
                yield _left(groups / controller / folder, *_FILES[controller])


def _left(folder: Path, limit: str, used: str, *files: str) -> int:
    """Raises ValueError where there is no limit: `max` is no number."""
    most = int((folder / limit).read_text(encoding="ascii"))
    taken = int((folder / used).read_text(encoding="ascii"))
    stat = dict(e.split() for e in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    return most - taken + sum(int(stat.get(name, 0)) for name in files)
