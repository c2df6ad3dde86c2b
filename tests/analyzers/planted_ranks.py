"""A job of several ranks that arrive when it is told, seen through clocks that are off by what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.skew.causes import RankTime
from perfdoc.analyzers.skew.waiting import measure_skew
from perfdoc.profiling.marks import format_group_mark, format_rank_mark
from perfdoc.results.ranks import LEAVES
from perfdoc.results.waits import SkewAnalysis
from perfdoc.traces.job_facts import JobFacts
from tests.captures.events import NcclPayload
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

UTC = 1_790_000_000_000_000_000
KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL",
    "send_recv": "ncclDevKernel_SendRecv",
}
CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
}
DESCRIPTIONS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "ep": "EXPERT_MODEL_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
}


@dataclass(frozen=True)
class Clock:
    """Reads true + offset + drift * (true - middle); the capture's zero is at `zero` of that clock."""

    offset_ns: int = 0
    drift: float = 0.0
    middle_ns: int = 0
    zero_ns: int = 0

    def utc(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + round(self.drift * (true_ns - self.middle_ns))

    def local(self, true_ns: int) -> int:
        return self.utc(true_ns) - self.zero_ns


@dataclass(frozen=True)
class Call:
    """One rank's part of a collective, on true time."""

    group: tuple[str, tuple[int, ...]]
    operation: str
    start_ns: int
    end_ns: int
    bytes: int
    step: int


@dataclass
class Job:
    """What the ranks did."""

    ranks: int
    calls: dict[int, list[Call]] = field(default_factory=dict)
    computes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    communicators: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def collective(
        self,
        dimension: str,
        arrivals: Mapping[int, int],
        transfer_ns: int,
        *,
        operation: str = "all_reduce",
        size: int = 4096,
        step: int = -1,
        jitter: Mapping[int, int] | None = None,
    ) -> int:
        """Ranks arrive when they do; all leave `transfer_ns` after the last, plus their own jitter."""
        group = (dimension, tuple(sorted(arrivals)))
        self.communicators.setdefault(group, 0xA000 + len(self.communicators))
        end = max(arrivals.values()) + transfer_ns
        for rank, start in arrivals.items():
            own_end = end + (jitter or {}).get(rank, 0)
            call = Call(group, operation, start, own_end, size, step)
            self.calls.setdefault(rank, []).append(call)
        return end

    def compute(self, rank: int, start_ns: int, end_ns: int) -> None:
        self.computes.setdefault(rank, []).append((start_ns, end_ns))

    def columns(
        self,
        clocks: Sequence[Clock] | None = None,
        *,
        sequences: bool = False,
        files: Sequence[str] | None = None,
        utc: bool = True,
        steps: bool = False,
        keep: Mapping[int, slice] | None = None,
    ) -> list[CollectiveCalls]:
        """What collective_calls would find in one capture of each rank."""
        return [
            self._columns_of(
                rank,
                clocks[rank] if clocks else Clock(),
                file=files[rank] if files else f"rank{rank}",
                sequences=sequences,
                utc=utc,
                steps=steps,
                keep=(keep or {}).get(rank, slice(None)),
            )
            for rank in range(self.ranks)
            if rank in self.calls
        ]

    def _columns_of(
        self, rank: int, clock: Clock, *, file: str, sequences: bool, utc: bool, steps: bool, keep: slice
    ) -> CollectiveCalls:
        calls = sorted(self.calls[rank], key=lambda c: c.start_ns)
        groups = list(dict.fromkeys(c.group for c in calls))
        operations = list(dict.fromkeys(c.operation for c in calls))
        number = dict.fromkeys(groups, 0)
        sequence = []
        for c in calls:
            sequence.append(number[c.group] if sequences else -1)
            number[c.group] += 1
        kept = calls[keep]

        def column(values: Sequence[int], dtype: type = np.int64) -> np.ndarray:
            return np.array(values, dtype)

        return CollectiveCalls(
            clock=file,
            label=f"device 0 in {file}",
            process=100 + rank,
            rank=rank,
            rank_evidence="mark",
            world_size=self.ranks,
            utc_origin_ns=UTC + clock.zero_ns if utc else None,
            on_host=False,
            groups=tuple(
                CallGroup(communicator=self.communicators[g], description=g[0], size=len(g[1]))
                for g in groups
            ),
            operations=tuple(operations),
            start_ns=column([clock.local(c.start_ns) for c in kept]),
            end_ns=column([clock.local(c.end_ns) for c in kept]),
            group=column([groups.index(c.group) for c in kept], np.int32),
            group_size=column([-1] * len(kept), np.int32),
            operation=column([operations.index(c.operation) for c in kept], np.int32),
            dimension=column([DIMENSIONS.index(c.group[0]) for c in kept], np.int8),
            bytes=column([c.bytes for c in kept]),
            sequence=column(sequence)[keep],
            peer=column([-1] * len(kept), np.int32),
            has_global_peers=False,
            lane=column([groups.index(c.group) for c in kept], np.int32),
            step=column([c.step if steps else -1 for c in kept]),
            in_window=column([True] * len(kept), np.bool_),
            end_is_exact=column([True] * len(kept), np.bool_),
        )

    def spent(
        self,
        idle: Mapping[int, Sequence[tuple[str, int]]] | None = None,
        begins: Mapping[int, int] | None = None,
    ) -> list[RankTime]:
        """Where the time of every rank went, from when it begins (0) to the end of the last call of all, as
        one step. Computing and calls must not overlap. idle: by rank (cause, ns) of what is neither; the rest
        of it is unexplained."""
        end = max(c.end_ns for calls in self.calls.values() for c in calls)
        found = []
        for rank in range(self.ranks):
            leaves = dict.fromkeys(LEAVES, 0)
            leaves["compute"] = sum(b - a for a, b in self.computes.get(rank, ()))
            for call in self.calls.get(rank, ()):
                leaves[f"exposed_comm.{call.group[0]}"] += call.end_ns - call.start_ns
            for cause, ns in (idle or {}).get(rank, ()):
                leaves[f"idle.{cause}"] += ns
            leaves["idle.unexplained"] = end - (begins or {}).get(rank, 0) - sum(leaves.values())
            found.append(RankTime(steps=("",), leaf_ns=np.array([list(leaves.values())])))
        return found

    def write_nsys(
        self,
        folder: Path,
        clocks: Sequence[Clock] | None = None,
        *,
        steps: Mapping[int, Sequence[int]] | None = None,
    ) -> list[Path]:
        """One Nsight file for each rank, with NCCL's payloads, rank marks and group marks.

        steps: by rank the true starts of its steps, numbered from 0.
        """
        paths = []
        for rank in sorted(self.calls):
            clock = clocks[rank] if clocks else Clock()
            builder = TimelineBuilder(utc_origin_ns=UTC + clock.zero_ns)
            process = builder.process(pid=1000 + rank)
            thread, device = process.thread(), process.device()
            begin = clock.local(min(c.start_ns for c in self.calls[rank])) - 1000
            thread.mark(format_rank_mark(rank, self.ranks, "cuda"), begin)
            groups = list(dict.fromkeys(c.group for c in self.calls[rank]))
            for i, (dimension, members) in enumerate(groups):
                mark = format_group_mark(
                    DESCRIPTIONS[dimension], members, self.communicators[dimension, members], name=str(i)
                )
                thread.mark(mark, begin + 1 + i)
            edges = [clock.local(t) for t in (steps or {}).get(rank, ())]
            for number, start in enumerate(edges[:-1]):
                thread.range(f"perfdoc.step {number}", start, edges[number + 1])
            for c in self.calls[rank]:
                start, end = clock.local(c.start_ns), clock.local(c.end_ns)
                payload = NcclPayload(communicator=self.communicators[c.group], bytes=c.bytes)
                thread.range(CALLS[c.operation], start - 300, start - 100, domain="NCCL", payload=payload)
                device.kernel(
                    KERNELS[c.operation],
                    start,
                    end,
                    stream=20 + groups.index(c.group),
                    launch=(thread, start - 250, start - 150),
                )
            for a, b in self.computes.get(rank, ()):
                device.kernel("gemm", clock.local(a), clock.local(b))
            paths.append(write_nsys_sqlite(builder.build(), folder / f"rank{rank}.sqlite"))
        return paths


def analyse_skew(
    ranks: Sequence[CollectiveCalls], facts: JobFacts, spent: Sequence[RankTime] = (), pp: int | None = None
) -> SkewAnalysis:
    """Match, align and measure all captures of one job."""
    matches = match_collectives(ranks, facts)
    return measure_skew(ranks, matches, align_clocks(matches, ranks), spent, pp)[0]
