"""Two ranks advancing together on one timeline while their ledgers are kept by addition.

Each rank has a host clock, which a launch moves on, and a device clock `now_ns`, up to which its
device's time is accounted for. Every method lays a stretch that starts at `now_ns`, so the leaves of a
rank are sums of the lengths laid and need no interval analysis. One communication runs at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.captures.device import DEFAULT_STREAM, DeviceBuilder
from tests.captures.events import Collective, NcclPayload
from tests.captures.process import ThreadBuilder

API_NS = 4_003
"""Length of a launch on the host."""
BETWEEN_NS = 1_500
"""Host time from the end of one call to the start of the next."""
LATENCY_NS = 2_201
"""From the end of a launch to the earliest start on an idle device."""
PREFETCH_STREAM = 13
DOMAIN = "NCCL"


@dataclass(frozen=True, kw_only=True)
class Work:
    """A kernel to lay: its names and how long it runs."""

    name: str
    full_name: str
    duration_ns: int
    grid: tuple[int, int, int] = (132, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A communicator, its stream, and how its calls look."""

    stream: int
    communicator: int
    kernel: str
    call: str
    torch_name: str
    group_name: str
    group_description: str
    reduction: str | None = None
    peer_to_peer: bool = False


@dataclass
class Ledger:
    """Sums of one rank's window, in ns."""

    compute: int = 0
    exposed_comm: int = 0
    exposed_memcpy: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        """Length of the window."""
        return self.compute + self.exposed_comm + self.exposed_memcpy + self.idle


@dataclass
class RankLane:
    """One rank: where its host and its device are, and what its ledger holds."""

    rank: int
    thread: ThreadBuilder
    device: DeviceBuilder
    host_ns: int
    now_ns: int
    ledger: Ledger = field(default_factory=Ledger)
    sequence: int = 0

    def launch(self) -> tuple[tuple[ThreadBuilder, int, int], int]:
        """The next launch, and when its work could start at the earliest."""
        start = self.host_ns
        self.host_ns = start + API_NS + BETWEEN_NS
        return (self.thread, start, start + API_NS), start + API_NS + LATENCY_NS

    def _idle_until(self, at_ns: int) -> None:
        self.ledger.idle += at_ns - self.now_ns
        self.now_ns = at_ns

    def compute(self, work: Work, *, prefetch_bytes: int = 0, beside: Work | None = None) -> None:
        """A kernel alone; with a copy, or a shorter second kernel, running entirely beneath it."""
        launch, ready = self.launch()
        start = max(self.now_ns, ready)
        self._idle_until(start)
        end = start + work.duration_ns
        self.device.kernel(work.name, start, end, full_name=work.full_name, launch=launch, grid=work.grid)
        if prefetch_bytes:
            launch, ready = self.launch()
            copy_start = max(start, ready)
            copy_end = copy_start + prefetch_bytes // 50
            assert copy_end <= end, "the prefetch must stay beneath its kernel"
            self.device.copy(
                "host_to_device", prefetch_bytes, copy_start, copy_end, stream=PREFETCH_STREAM, launch=launch
            )
        if beside is not None:
            launch, ready = self.launch()
            second = max(start, ready)
            assert second + beside.duration_ns <= end, "the second kernel must stay beneath the first"
            self.device.kernel(
                beside.name, second, second + beside.duration_ns, stream=PREFETCH_STREAM, launch=launch
            )
        self.ledger.compute += work.duration_ns
        self.now_ns = end

    def copy(self, size_bytes: int, duration_ns: int) -> None:
        """A host-to-device copy alone on the device."""
        launch, ready = self.launch()
        start = max(self.now_ns, ready)
        self._idle_until(start)
        self.device.copy("host_to_device", size_bytes, start, start + duration_ns, launch=launch)
        self.ledger.exposed_memcpy += duration_ns
        self.now_ns = start + duration_ns

    def clear(self, size_bytes: int, duration_ns: int) -> None:
        """A memory set alone on the device."""
        launch, ready = self.launch()
        start = max(self.now_ns, ready)
        self._idle_until(start)
        self.device.memset(size_bytes, start, start + duration_ns, launch=launch)
        self.ledger.exposed_memcpy += duration_ns
        self.now_ns = start + duration_ns

    def wait_for_device(self) -> None:
        """The host reads a loss: it blocks until the device has nothing left."""
        end = max(self.now_ns, self.host_ns) + 3_000
        self.thread.synchronize("stream", self.host_ns, end, stream=DEFAULT_STREAM)
        self.host_ns = end + BETWEEN_NS

    def busy_host(self, name: str, duration_ns: int) -> None:
        """The host does something else inside a range and launches nothing."""
        self.thread.range(name, self.host_ns, self.host_ns + duration_ns)
        self.host_ns += duration_ns + BETWEEN_NS

    def issue(self, channel: Channel, size_bytes: int) -> tuple[tuple[ThreadBuilder, int, int], int]:
        """NCCL's ranges around the launch of a collective, or of a group of send and receive."""
        payload = NcclPayload(
            communicator=channel.communicator,
            bytes=size_bytes,
            reduction=channel.reduction,
            peer=1 - self.rank if channel.peer_to_peer else None,
        )
        begin = self.host_ns
        if channel.peer_to_peer:
            self.thread.range("ncclGroupStart", begin, begin + 300, domain=DOMAIN)
            self.thread.range("ncclSend", begin + 400, begin + 900, domain=DOMAIN, payload=payload)
            self.thread.range("ncclRecv", begin + 1_000, begin + 1_500, domain=DOMAIN, payload=payload)
            begin += 1_600
        self.host_ns = begin + 1_200
        launch, ready = self.launch()
        if channel.peer_to_peer:
            self.thread.range("ncclGroupEnd", begin, launch[2] + 200, domain=DOMAIN)
        else:
            self.thread.range(channel.call, begin, launch[2] + 200, domain=DOMAIN, payload=payload)
        self.sequence += 1
        return launch, ready


def communicate(
    lanes: Sequence[RankLane],
    channel: Channel,
    *,
    size_bytes: int,
    transfer_ns: int,
    beneath: Sequence[Work] = (),
    waits: bool = True,
) -> None:
    """One collective on all ranks, `beneath` computing meanwhile on each.

    It ends everywhere together, `transfer_ns` after the last rank has joined. With `waits` the compute
    stream waits for it through an event. Afterwards both streams are done on every rank.
    """
    joined: list[tuple[RankLane, int, tuple[ThreadBuilder, int, int]]] = []
    for lane in lanes:
        launch, ready = lane.issue(channel, size_bytes)
        joined.append((lane, max(lane.now_ns, ready), launch))
    end = max(start for _, start, _ in joined) + transfer_ns
    for lane, start, launch in joined:
        lane.device.kernel(
            channel.kernel,
            start,
            end,
            stream=channel.stream,
            full_name=f"{channel.kernel}(ncclDevKernelArgsStorage<(unsigned long)4096>)",
            grid=(24, 1, 1),
            block=(544, 1, 1),
            launch=launch,
            collective=Collective(
                operation=channel.torch_name,
                group_name=channel.group_name,
                group_description=channel.group_description,
                ranks=tuple(other.rank for other in lanes),
                dtype="BFloat16",
                in_elements=size_bytes // 2,
                out_elements=size_bytes // 2,
                sequence=lane.sequence,
            ),
        )
        cursor, computed, covered = lane.now_ns, 0, 0
        for work in beneath:
            launch, ready = lane.launch()
            begin = max(cursor, ready)
            cursor = begin + work.duration_ns
            lane.device.kernel(
                work.name, begin, cursor, full_name=work.full_name, launch=launch, grid=work.grid
            )
            computed += work.duration_ns
            covered += max(0, min(cursor, end) - max(begin, start))
        if waits:
            record = lane.device.record_event(channel.stream, launch=lane.launch()[0], done_ns=end)
            lane.device.wait_event(DEFAULT_STREAM, record, launch=lane.launch()[0])
        done = max(cursor, end)
        exposed = (end - start) - covered
        lane.ledger.compute += computed
        lane.ledger.exposed_comm += exposed
        lane.ledger.idle += (done - lane.now_ns) - computed - exposed
        lane.now_ns = done
