"""The truth about a planted job.

Times of one rank are nanoseconds on the clock of its file; those of collectives and of pipelines are true
time, which is a rank's own wherever its clock is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class RankAnswer:
    """One rank's window: its leaves sum to its length."""

    rank: int
    pid: int
    device: int
    stage: int
    step_start_ns: tuple[int, ...]
    window_end_ns: int
    compute_ns: int
    exposed_comm_ns: Mapping[str, int]
    """By dimension, those present."""
    exposed_memcpy_ns: int
    idle_ns: Mapping[str, int]
    """By cause, those present: host, data, dependency, launch_latency."""
    hidden_comm_ns: Mapping[str, int]
    """Union of a dimension's communication while compute ran."""
    norm_alone_ns: tuple[int, ...]
    """Durations of the norm kernels beside which nothing communicated."""
    norm_contended_ns: tuple[int, ...]
    """Durations of those wholly beside resident communication."""

    @property
    def window_start_ns(self) -> int:
        """Start of the first step."""
        return self.step_start_ns[0]


@dataclass(frozen=True, kw_only=True)
class CollectiveAnswer:
    """One collective, or one message between two stages; true time."""

    dimension: str
    operation: str
    """all_gather, reduce_scatter, all_reduce, all_to_all, send_recv (a ring's step, or a message)."""
    communicator: int
    sequence: int
    """Counts the calls of a communicator from 0; for a message those of (sender, receiver, direction)."""
    bytes: int
    ranks: tuple[int, ...]
    """Members in the group's order; sender and receiver of a message."""
    start_ns: tuple[int, ...]
    """When each member joined."""
    end_ns: int
    """The same for all. (A kernel that carries several messages ends with the last of them.)"""

    @property
    def transfer_ns(self) -> int:
        """From the last one's joining to the end."""
        return self.end_ns - max(self.start_ns)

    @property
    def wait_ns(self) -> tuple[int, ...]:
        """What each member waited for the last one."""
        return tuple(max(self.start_ns) - s for s in self.start_ns)

    @property
    def last_rank(self) -> int | None:
        """Whoever joined last; None where several did."""
        last = [r for r, s in zip(self.ranks, self.start_ns, strict=True) if s == max(self.start_ns)]
        return last[0] if len(last) == 1 else None


@dataclass(frozen=True, kw_only=True)
class StageAnswer:
    """One rank in one step of its pipeline; bubble + transfer + handover + late_peer = idle."""

    rank: int
    stage: int
    own_ns: int
    """Its passes, whatever is inside them."""
    idle_ns: int
    """The rest of the pipeline's window."""
    bubble_ns: int
    transfer_ns: int
    handover_ns: int
    late_peer_ns: int


@dataclass(frozen=True, kw_only=True)
class PipelineAnswer:
    """One pipeline in one step; true time.

    transfer and handover are counterfactual: by how much the window shrinks where messages take no time, or
    have no gaps around them. bubble is what (pp - 1) / (vpp * micro-batches) of the mean own time comes to,
    and at most what idle time is left; late_peer is the rest.
    """

    step: int
    ranks: tuple[int, ...]
    start_ns: int
    """Start of the first pass."""
    end_ns: int
    """End of the last."""
    ideal_bubble_ns: int
    stages: tuple[StageAnswer, ...]


@dataclass(frozen=True, kw_only=True)
class JobAnswer:
    """Everything that was planted."""

    ranks: tuple[RankAnswer, ...]
    collectives: tuple[CollectiveAnswer, ...]
    lay_pipelines: Callable[[], tuple[PipelineAnswer, ...]]

    @cached_property
    def pipelines(self) -> tuple[PipelineAnswer, ...]:
        """By step, then by first rank; empty without pipeline parallelism. Laid twice more for it."""
        return self.lay_pipelines()

    def wait_caused_ns(self, dimension: str) -> dict[int, int]:
        """By rank, what the other members of its collectives waited because it alone joined last."""
        caused: dict[int, int] = {}
        for c in self.collectives:
            if c.dimension == dimension and c.last_rank is not None:
                caused[c.last_rank] = caused.get(c.last_rank, 0) + sum(c.wait_ns)
        return caused
