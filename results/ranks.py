"""One device of one process: its window, its ledger, its communication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, fields
from statistics import median_low
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.capture_parts import Pause, Period, RangeProposal, StartUp
from perfdoc.results.contention import DeviceContention
from perfdoc.results.host import HostActivity
from perfdoc.results.kernels import KernelPartsAnalysis, SuspectedCommunication
from perfdoc.results.quality import NO_EVENTS, EventCounts
from perfdoc.results.replay import Replay


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The device of a rank; None where the capture does not say."""

    name: str | None
    sm_count: int | None
    memory_bytes: int | None
    host: str | None = None
    """Name of the machine."""
    bus: str | None = None
    """Its place on the machine's PCI bus, which `nvidia-smi -i` takes."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step on one device. Steps tile the window without gaps."""

    name: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """Where the next one begins."""
        return self.start_ns + self.duration_ns


ASKED_FOR = "given with --window capture"
NO_STEPS = "no range in the capture names a step"
"""Why a window is the whole capture; other reasons are words of their own."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a device's time that the ledger partitions, on the capture's clock."""

    kind: Literal["steps", "capture", "user"]
    start_ns: int
    end_ns: int
    duration_ns: int
    steps: int
    """Steps inside the window; 0 where the window is not made of steps."""
    step_list: list[Step]
    reason: str
    """Why this kind of window was taken."""
    start_up: StartUp | None = None
    """None where none was seen. Of a window of steps the cold ones, which are left out."""
    period: Period | None = None
    """Of what follows start-up; None where none was seen, or the window was not the whole capture."""
    proposals: list[RangeProposal] = field(default_factory=list)
    """Ranges of the capture that could be steps, best first."""
    pause: Pause | None = None
    runs_once: str = ""
    """Why no gain is predicted of it: start-up or a single pause is much of it. Empty where gains may be."""
    outside_ns: int = 0
    """Of a single step: what its range on the host has before and after it, with the device idle."""
    outside_data_ns: int = 0
    """Of that, in ranges that load data."""


@dataclass(frozen=True, kw_only=True)
class ExposedComm:
    """Communication that ran while no compute kernel did, by parallel dimension."""

    dp: int
    tp: int
    cp: int
    ep: int
    pp: int
    other: int
    unknown: int

    @property
    def total(self) -> int:
        """All dimensions together."""
        return self.dp + self.tp + self.cp + self.ep + self.pp + self.other + self.unknown

    @property
    def by_name(self) -> dict[str, int]:
        """Nanoseconds by dimension, every one present."""
        return {dimension: getattr(self, dimension) for dimension in DIMENSIONS}


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Time in which nothing ran on the device, by cause."""

    host: int
    gc: int
    data: int
    dependency: int
    launch_latency: int
    unexplained: int

    @property
    def total(self) -> int:
        """All causes together."""
        waits = self.host + self.gc + self.data + self.dependency
        return waits + self.launch_latency + self.unexplained

    @property
    def by_name(self) -> dict[str, int]:
        """Nanoseconds by cause, every one present."""
        return {cause: getattr(self, cause) for cause in IDLE_CAUSES}


DIMENSIONS = tuple(f.name for f in fields(ExposedComm))
IDLE_CAUSES = tuple(f.name for f in fields(Idle))
LEAVES = (
    "compute",
    *(f"exposed_comm.{dimension}" for dimension in DIMENSIONS),
    "exposed_memcpy",
    *(f"idle.{cause}" for cause in IDLE_CAUSES),
)
"""Dotted names of the ledger's leaves, in order of precedence."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A partition of the window: every nanosecond is in exactly one leaf."""

    compute: int
    exposed_comm: ExposedComm
    exposed_memcpy: int
    idle: Idle

    @property
    def total(self) -> int:
        """The window's length: the leaves sum to it exactly."""
        return self.compute + self.exposed_comm.total + self.exposed_memcpy + self.idle.total

    @property
    def by_leaf(self) -> dict[str, int]:
        """Nanoseconds by the names of LEAVES."""
        comm, idle = self.exposed_comm.by_name.values(), self.idle.by_name.values()
        return dict(zip(LEAVES, (self.compute, *comm, self.exposed_memcpy, *idle), strict=True))


@dataclass(frozen=True, kw_only=True)
class KernelsOnly:
    """Figures of kernels alone (no copies, no graph launches), for comparison with tools that count so.
    Unions; span is the first kernel's start to the last one's end."""

    kernels: int
    comm_kernels: int
    span_ns: int
    """The window's length where it is clipped to one."""
    busy_ns: int
    compute_ns: int
    """Every kernel that is not communication."""
    comm_ns: int
    hidden_ns: int
    """Communication while compute runs."""
    exposed_ns: int
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class MessageSizes:
    """Operations of one communication row by message size."""

    most_bytes: int | None
    """Upper bound of the class; None for the class of the largest."""
    count: int
    exposed_ns: int
    """Union: classes that overlap in time count it twice."""


@dataclass(frozen=True, kw_only=True)
class Communication:
    """One row of the communication table: unions inside the window; hidden + exposed = total."""

    dimension: str
    transport: str
    collective: str
    element_type: str
    """Where the kernel's name or its metadata carries it; empty otherwise."""
    count: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    blocking_ns: int | None
    """The part of exposed during which compute provably waited; None if the capture cannot prove it."""
    bytes: int | None
    """Sum of message sizes; None unless every one of them is known."""
    bus_bandwidth_gbps: float | None
    """Over the operations' own durations, waiting for late ranks included."""
    evidence: str
    """What tells the dimension."""
    group: str
    """Process-group description, else its name, else the communicator id; empty where none is known. Of
    very many groups those that communicate least share rows, which say how many they are."""
    sizes: list[MessageSizes] = field(default_factory=list)
    """By ascending size, of the operations whose size is known."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One device of one process."""

    label: str
    """What reports call it; unlike all the others."""
    rank: int | None
    """Global rank; with the evidence `communicator` the place in the communicator of the whole job."""
    rank_evidence: str
    """How the rank is known: mark, distributedInfo, communicator, ...; none."""
    device: int
    pid: int
    input: int
    """Index into Diagnosis.inputs."""
    gpu: Gpu
    window: Window
    ledger_ns: Ledger
    communication: list[Communication]
    kernel_parts: KernelPartsAnalysis
    contention: DeviceContention
    host: HostActivity
    replay: Replay | None
    """Replay of the unedited window; None if it was not asked for, or where events are missing."""
    kernels_only_window: KernelsOnly
    """Clipped to the window."""
    kernels_only_capture: KernelsOnly
    """The whole capture, whatever the window."""
    events: EventCounts = NO_EVENTS
    suspected: SuspectedCommunication | None = None
    """None in a file of an earlier version, which did not look."""


_ONE_FIGURE_FRAC = 0.01
"""Of the mean: the longest rank's step is the same to a reader."""


def in_steps(ranks: Iterable[Rank]) -> bool:
    """Whether every window is made of steps: figures are of a step then, else of a window."""
    return all(rank.window.kind == "steps" and rank.window.steps for rank in ranks)


def units_of(ranks: Sequence[Rank]) -> list[int]:
    """The steps of each rank's window; 1 each where any is not made of steps."""
    return [rank.window.steps for rank in ranks] if in_steps(ranks) else [1] * len(ranks)


def longest_step_ns(ranks: Sequence[Rank]) -> float:
    """The mean step of the rank whose steps are longest, of which gains are shares; the longest window, where
    any is not made of steps."""
    return max(rank.window.duration_ns / n for rank, n in zip(ranks, units_of(ranks), strict=True))


def shown_step_ns(mean_ns: float, ranks: Sequence[Rank]) -> float:
    """What stands for the mean step or window of all ranks: the longest rank's, if that is as long."""
    longest_ns = longest_step_ns(ranks)
    return longest_ns if longest_ns <= (1 + _ONE_FIGURE_FRAC) * mean_ns else mean_ns


_LONGER, _FEW = 1.15, 3
"""Computing over that of the median rank: from here on, of so many ranks at most, that is said."""


def computing_longer(ranks: Sequence[Rank]) -> tuple[float, dict[str, float]]:
    """(What the median rank computes a step, the same of the few that compute longer, by label): the others
    may wait for them."""
    each = {rank.label: rank.ledger_ns.compute / max(rank.window.steps, 1) for rank in ranks}
    usual = median_low(each.values())
    longer = {label: ns for label, ns in each.items() if ns >= _LONGER * usual > 0}
    return usual, longer if len(longer) <= min(_FEW, len(ranks) // 2) else {}
