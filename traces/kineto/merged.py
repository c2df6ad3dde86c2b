"""Ranks that were merged into one file: which GPUs are others' with the same number, and whose they are where
ids do not tell.

Whoever merges ranks changes the pid of their rows (`[TP01] 4711`, and `[TP01] 1` of its GPU; or a number is
added to both), puts one rank behind the other, or both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces.kineto.values import integer
from perfdoc.traces.model import UNKNOWN
from perfdoc.traces.table import I64

_PLACES = 1 << 62
"""Above what a GPU or a process has for a number."""
_FEW_FRAC = 0.01
"""Of the rows of the fullest place: fewer are damage, and no GPU of their own."""
_NUMBERED = pattern_of(r"(?s)(.{1,200}?)(\d{1,10})\s*\Z")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Of the places of a file, see `Places.of`."""

    ordinal: Mapping[int, int]
    """The GPU's number."""
    owner: Mapping[int, int]
    """Its process, where the file's order or the names of processes show it."""

    def ordinals(self, places: I64) -> I64:
        """The same with the GPUs' own numbers."""
        if not self.ordinal:
            return places
        known = np.array(sorted(self.ordinal), np.int64)
        numbers = np.array([self.ordinal[place] for place in known.tolist()], np.int64)
        at = np.minimum(np.searchsorted(known, places), len(known) - 1)
        found: I64 = np.where(known[at] == places, numbers[at], places)
        return found


class Places:
    """Processes that are named and not numbered, and GPUs whose rows have another pid than their number."""

    def __init__(self) -> None:
        self._of: dict[tuple[int | str, int], int] = {}
        self._processes: dict[str, int] = {}
        self._taken: set[int] = set()

    def of(self, pid: object, ordinal: int) -> int:
        """A number of its own for rows of a GPU whose pid is not its number."""
        if not isinstance(pid, int | str):
            return ordinal
        return self._of.setdefault((pid, ordinal), _PLACES + len(self._of))

    def process(self, pid: object) -> int:
        """The number of a process: the one that its name ends in, unless another one has it."""
        if (number := integer(pid)) != UNKNOWN or not isinstance(pid, str) or not (m := _NUMBERED.match(pid)):
            return number
        if pid not in self._processes:
            taken = int(m[2]) in self._taken
            self._processes[pid] = _PLACES + len(self._processes) if taken else int(m[2])
            self._taken.add(self._processes[pid])
        return self._processes[pid]

    def resolved(self, gpus: I64, hosts: I64, processes: Sequence[int]) -> Merged:
        """gpus: places of kernels; hosts: processes of calls; both in the file's order. processes: all."""
        if not self._of and len(processes) <= 1:
            return Merged(ordinal={}, owner={})
        numbers = {place: ordinal for (_, ordinal), place in self._of.items()}
        if len(processes) == 1:  # whose rows all are: other pids make no other GPU
            return Merged(ordinal=numbers, owner={})
        owner = self._by_name(processes) or self._by_base(processes) or _by_order(gpus, hosts)
        places, count = np.unique(gpus, return_counts=True)
        full = set(places[count >= _FEW_FRAC * count.max(initial=0)].tolist())
        used = [place for place in dict.fromkeys(gpus[_begins(gpus)].tolist()) if place in full]
        of = [(owner.get(place), numbers.get(place, place)) for place in used]
        if len(set(of)) < len(of):  # two GPUs of nobody known, with one number
            numbers |= {place: i for i, place in enumerate(used)}
        return Merged(ordinal=numbers, owner=owner)

    def _by_name(self, processes: Sequence[int]) -> dict[int, int]:
        """`[TP01] 1` is of the one process whose name begins so too."""
        hosts, known = dict[str, list[int]](), set(processes)
        for name, number in self._processes.items():
            if number in known and (m := _NUMBERED.match(name)):
                hosts.setdefault(m[1], []).append(number)
        named = [(m[1], place) for (pid, _), place in self._of.items() if (m := _NUMBERED.match(str(pid)))]
        return {place: hosts[name][0] for name, place in named if len(hosts.get(name, ())) == 1}

    def _by_base(self, processes: Sequence[int]) -> dict[int, int]:
        """Where a number of each rank's own was added to all its pids, every GPU's is below its process."""
        bases = sorted((pid - n, place) for (pid, n), place in self._of.items() if isinstance(pid, int))
        begins = [base for base, _ in bases]
        owner = {bases[at - 1][1]: p for p in processes if (at := bisect_right(begins, p))}
        return owner if len(owner) == len(bases) == len(processes) > 1 else {}


def _by_order(gpus: I64, hosts: I64) -> dict[int, int]:
    """Where each GPU's rows are together, and so are as many processes' calls: of each other, in order."""
    gpu, host = (rows[_begins(rows)].tolist() for rows in (gpus, hosts))
    whole = len(gpu) == len(set(gpu)) == len(host) == len(set(host))
    return dict(zip(gpu, host, strict=True)) if whole and len(gpu) > 1 else {}


def _begins(rows: I64) -> I64:
    """Where another value begins."""
    return np.flatnonzero(np.diff(rows, prepend=rows[:1] - 1))
