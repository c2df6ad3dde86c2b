"""The ranks that measure together, and one piece of work timed on all of them at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from perfdoc.peak.store import usable_cpus
from perfdoc.profiling.marks import DeviceKind
from perfdoc.records import dataclass

Work = Callable[[], object]
_MEETING_S = 90
"""A rank that waits longer for another has lost it."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The best round of several, and how the others were."""

    rate: float
    """Of one rank, in units of `amount` a second."""
    spread_frac: float
    """How far the median round lies below the best."""
    cpu_frac: float | None
    """CPU time that the best round got, of what its threads could use; None on a GPU."""
    rounds: int
    own_rates: Sequence[float]
    """Best of each rank: of devices that are not shared, a slow one shows."""


@dataclass(frozen=True, kw_only=True)
class Team:
    """This rank among those of the machine."""

    rank: int
    ranks: int
    kind: DeviceKind

    @classmethod
    def meet(cls, *, rank: int, ranks: int, kind: DeviceKind, at: str) -> Team:
        """Join the others through the file `at`, each with a GPU of its own where there are some."""
        if kind == "cuda":
            torch.cuda.set_device(rank)
        if ranks > 1:
            backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
            where = f"file://{at}"
            limit = timedelta(seconds=_MEETING_S)
            dist.init_process_group(backend, init_method=where, rank=rank, world_size=ranks, timeout=limit)
        return cls(rank=rank, ranks=ranks, kind=kind)

    @property
    def device(self) -> torch.device:
        """Where this rank's tensors lie."""
        return torch.device("cuda", self.rank) if self.kind == "cuda" else torch.device("cpu")

    def all_of(self, mine: Sequence[float]) -> list[list[float]]:
        """The figures of every rank, by rank; every rank calls it."""
        if self.ranks == 1:
            return [list(mine)]
        found = [torch.zeros(len(mine), dtype=torch.float64) for _ in range(self.ranks)]
        dist.all_gather(found, torch.tensor(list(mine), dtype=torch.float64))
        return [each.tolist() for each in found]

    def can(self, work: Work) -> str:
        """Try it once on every rank; why it does not work, empty where it works on all of them."""
        reason = ""
        try:
            work()
            self.synchronize()
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        works = all(good for (good,) in self.all_of([float(not reason)]))
        return "" if works else reason or "it does not work on another rank"

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(
        self, work: Work, amount: float, *, round_s: float, rounds: int, together: bool = False
    ) -> Timed:
        """Repeat work of `amount` for about `round_s` seconds, `rounds` times, all ranks at once.

        together: one piece of work is all ranks', as a collective is. So it is on a CPU, which they share:
        then a round lasts from the first rank's start to the last one's end. Else each has its own time.
        """
        together = together or self.kind == "cpu"
        times = max(1, int(round_s / max(self._slowest_s(work), 1e-7)))
        best: list[float] = []
        own_best = [0.0] * self.ranks
        cpu: float | None = None
        for _ in range(rounds):
            self._line_up()
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(times):
                work()
            self.synchronize()
            end, used = time.perf_counter(), time.process_time() - cpu_start
            seen = self.all_of([start, end, used])
            whole = max(e for _, e, _ in seen) - min(s for s, _, _ in seen)
            own = [amount * times / max(e - s, 1e-9) for s, e, _ in seen]
            best.append(amount * times / max(whole, 1e-9) if together else max(own))
            own_best = [max(a, b) for a, b in zip(own_best, own, strict=True)]
            if self.kind == "cpu" and best[-1] == max(best):
                cpu = min(u / (max(e - s, 1e-9) * self._cores()) for s, e, u in seen)
        top = max(best)
        return Timed(
            rate=top,
            spread_frac=max(0.0, 1 - statistics.median(best) / top),
            cpu_frac=None if cpu is None else min(cpu, 1.0),
            rounds=rounds,
            own_rates=own_best,
        )

    def _slowest_s(self, work: Work) -> float:
        """Of one piece of work, on the slowest rank. Also warms up."""
        work()
        self._line_up()
        start = time.perf_counter()
        work()
        self.synchronize()
        return max(took for (took,) in self.all_of([time.perf_counter() - start]))

    def _line_up(self) -> None:
        self.synchronize()
        self.all_of([0.0])

    def _cores(self) -> float:
        """CPUs that this rank's threads can use at once, beside those of the other ranks."""
        return min(float(torch.get_num_threads()), usable_cpus() / self.ranks)

    def leave(self) -> None:
        """End the group."""
        if self.ranks > 1:
            dist.destroy_process_group()
