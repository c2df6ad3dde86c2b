"""What a planted job is made of: sizes, durations, what is wrong with it, the clocks of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfdoc.simulator.captures.nsys import Clock
from tests.planted.experts import ExpertLayers
from tests.planted.layered import LayeredModel


@dataclass(frozen=True, kw_only=True)
class Late:
    """One rank whose compute is slower, or whose host is."""

    rank: int
    extra_ns: int
    """Added to the first kernel of every forward pass of a micro-batch (of a host, see JobSpec.gc)."""
    steps: tuple[int, ...] | None = None
    """In which steps; None: in all."""

    def hits(self, step: int) -> bool:
        """Whether it is so in this step."""
        return self.steps is None or step in self.steps


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Parameters of a planted job. World size is tp * cp * dp * pp; ep divides cp * dp."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    vpp: int = 1
    """Model chunks per stage. Above 1 the messages between stages run beside compute (sent and received
    through streams of their own); at 1 they stand in the way of compute, as megatron-core's default does."""
    micro_batches: int = 4
    steps: int = 3
    forward_ns: int = 800_000
    """First kernel of a forward pass of one chunk; collectives and the compute beside them come on top."""
    backward_ns: int = 1_500_000
    stage_extra_ns: tuple[int, ...] = ()
    """Added to the first kernel of every forward pass, by stage: a stage with more to do."""
    output_ns: tuple[int, int] = (0, 0)
    """Added to the first kernel of the (forward, backward) of the last chunk of all: output layer, loss."""
    compute_factor: float = 1.0
    """Of every kernel inside a pass that computes, output_ns included."""
    transfer_factor: float = 1.0
    """Of every collective inside a pass, all of it."""
    size_factor: float = 1.0
    """Of what it takes beyond COLLECTIVE_LATENCY_NS."""
    dp_factor: float = 1.0
    """Of every collective over dp outside of passes."""
    slow_port: tuple[int, float] | None = None
    """A rank, and the factor of every collective and message that it takes part in."""
    slow_port_in: str = ""
    """The dimension of the collectives that a slow port is slow in; empty all."""
    late: Late | tuple[Late, ...] | None = None
    pp_transfer_ns: int = 30_007
    """From when both sides of a message between stages are there to its end."""
    pp_handover_ns: int = 0
    """From the end of compute to the start of a blocking message's kernel, and from its end to compute."""
    norm_ns: int = 20_011
    """A norm kernel alone."""
    norm_contended_ns: int = 29_017
    """The same norm beside resident communication."""
    data_ns: int = 150_000
    """The host waits for data at the start of a step."""
    gc: Late | None = None
    """One rank's host collects garbage for `extra_ns` before its first backward pass of a step."""
    between_ns: int = 1_500
    """Host time from the end of one call to the start of the next."""
    buckets: int = 0
    """Above 0: plain data parallelism. Nothing is gathered, and gradients are all-reduced in so many buckets
    during the last backward pass of a step, each as soon as its part of the pass has run."""
    exposed: tuple[str, ...] = ()
    """Dimensions whose collectives run with no compute beside them; buckets of gradients follow the pass."""
    clocks: tuple[Clock, ...] = ()
    """By rank; empty: all files share the true clock."""
    one_file: bool = False
    """All ranks as processes of one capture, as one nsys on one node makes it."""
    group_marks: bool = True
    """Whether the capture says which communicator is which group."""
    micro_batch_ranges: bool = True
    """Whether passes of micro-batches are in ranges."""
    experts: ExpertLayers | None = None
    """Passes are layers of these, and durations of passes and of their communication say nothing of them."""
    model: LayeredModel | None = None
    """Passes are layers of this model, and durations, sizes and factors above say nothing of them."""
    sequences: int = 1
    """Of a micro-batch of `model`."""

    def __post_init__(self) -> None:
        sizes = (self.tp, self.cp, self.dp, self.pp, self.ep, self.vpp, self.micro_batches, self.steps)
        if min(sizes) < 1:
            raise ValueError(f"JobSpec: a size of {sizes} is below 1")
        if (self.cp * self.dp) % self.ep:
            raise ValueError(f"JobSpec: ep {self.ep} does not divide cp x dp = {self.cp * self.dp}")
        if self.model is not None and self.model.layers % (self.pp * self.vpp):
            raise ValueError(f"JobSpec: {self.model.layers} layers on {self.pp} x {self.vpp} chunks")
        if self.vpp > 1 and (self.pp == 1 or self.micro_batches % self.pp):
            raise ValueError("JobSpec: vpp above 1 needs pp above 1 that divides micro_batches")
        if self.buckets and (self.dp == 1 or self.world_size > self.dp):
            raise ValueError("JobSpec: buckets go with dp only")
        if self.clocks and len(self.clocks) != self.world_size:
            raise ValueError(f"JobSpec: {len(self.clocks)} clocks for {self.world_size} ranks")
        if self.one_file and len(set(self.clocks)) > 1:
            raise ValueError("JobSpec: one file has one clock")
        if self.stage_extra_ns and len(self.stage_extra_ns) != self.pp:
            raise ValueError(f"JobSpec: {len(self.stage_extra_ns)} stage_extra_ns for {self.pp} stages")
        for late in self.lates:
            if not 0 <= late.rank < self.world_size:
                raise ValueError(f"JobSpec: late rank {late.rank} is not in the world")
        if self.norm_contended_ns > 60_000:
            raise ValueError("JobSpec: norm_contended_ns above 60,000 outlasts the communication beside it")

    @property
    def has_answer(self) -> bool:
        """Whether it is certain what every nanosecond is. With interleaving, exposed collectives would run
        beside resident messages: whose time that is, is a matter of definition and no planted truth. Where
        layers are laid, what should run beside communication may start late, if its launch does."""
        return self.model is None and (self.vpp == 1 or self.tp == self.cp == self.ep == 1)

    def computes(self, duration_ns: int) -> int:
        """A kernel of a pass that computes."""
        return round(duration_ns * self.compute_factor)

    def slowed(self, duration_ns: float, ranks: Iterable[int], dimension: str) -> int:
        """What moving takes among these ranks."""
        slow, factor = self.slow_port or (-1, 1.0)
        is_slow = slow in ranks and self.slow_port_in in ("", dimension)
        return round(duration_ns * (factor if is_slow else 1.0))

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def lates(self) -> tuple[Late, ...]:
        """Every rank that is late."""
        return self.late if isinstance(self.late, tuple) else (self.late,) if self.late is not None else ()

    def clock(self, rank: int) -> Clock:
        """The clock of a rank's file."""
        return self.clocks[rank] if self.clocks else Clock()


COLLECTIVE_LATENCY_NS = 21_001
"""A collective of next to nothing."""

KINDS: Mapping[str, JobSpec] = MappingProxyType(
    {
        "dp4": JobSpec(dp=4, micro_batches=2),
        "ep4": JobSpec(dp=4, ep=4, micro_batches=2),
        "tp2_dp2": JobSpec(tp=2, dp=2, micro_batches=2),
        "cp2_dp2": JobSpec(cp=2, dp=2, micro_batches=2),
        "pp4": JobSpec(pp=4, micro_batches=8),
        "pp2_vpp2_dp2": JobSpec(pp=2, vpp=2, dp=2, micro_batches=4),
        "cp2_ep2_pp2": JobSpec(cp=2, ep=2, pp=2, micro_batches=4),
        "tp2_pp2_dp2": JobSpec(tp=2, pp=2, dp=2, micro_batches=4),
        "tp2_cp2_ep2_pp2": JobSpec(tp=2, cp=2, ep=2, pp=2, micro_batches=4),
        "pp4_vpp2_dp2": JobSpec(pp=4, vpp=2, dp=2, micro_batches=8),
    }
)
"""Balanced jobs of 4 and 8 ranks by name; `dataclasses.replace` plants something in them."""
