"""One rank of a planted job: its host, its device, and a log of what every stretch of its time is.

All times are true; what goes into the capture is put on the clock of the rank's file. The log tiles the
device's time from the first activity on, so the ledger is a sum of lengths laid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from perfdoc.simulator.captures.groups import Group, Place, groups_of, place_of
from perfdoc.simulator.captures.nsys import Clock
from tests.captures.device import DEFAULT_STREAM, DeviceBuilder
from tests.captures.events import NcclPayload
from tests.captures.process import Launch, ProcessBuilder, ThreadBuilder
from tests.planted.schedule import Pass
from tests.planted.spec import JobSpec

API_NS = 4_003
"""Length of a launch on the host."""
LATENCY_NS = 2_201
"""From the end of a launch to the earliest start on an idle device."""
DOMAIN = "NCCL"
FULL_NAME = "{}(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT"
NORM = "rmsnorm_fwd_tuned_kernel"
_NORM_FULL = (
    f"void transformer_engine::normalization::{NORM}"
    "<transformer_engine::normalization::Kernel_traits<__nv_bfloat16, 1>>(Params)"
)


@dataclass(frozen=True)
class Stretch:
    """[start, end) of a device's time, in one leaf of its ledger."""

    leaf: str
    """compute, memcpy, comm.<dimension> or idle.<cause>."""
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class LaidPass:
    """Where on the device a pass of a micro-batch ran, from its first kernel to its last activity."""

    step: int
    what: Pass
    start_ns: int
    end_ns: int


@dataclass
class RankLane:
    """One rank under construction."""

    spec: JobSpec
    rank: int
    process: ProcessBuilder
    thread: ThreadBuilder = field(init=False)
    launcher: ThreadBuilder = field(init=False)
    """Which launches now: autograd's own in backward passes of layers of experts."""
    device: DeviceBuilder = field(init=False)
    place: Place = field(init=False)
    groups: dict[str, Group] = field(init=False)
    clock: Clock = field(init=False)
    host_ns: int = 0
    now_ns: int = 0
    """Up to here the device's time is accounted for."""
    last_stream: int = DEFAULT_STREAM
    """Where the activity ran that ended last."""
    log: list[Stretch] = field(default_factory=list)
    comm: list[tuple[str, int, int]] = field(default_factory=list)
    """(dimension, start, end) of every communication kernel."""
    norms: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) of every norm."""
    passes: list[LaidPass] = field(default_factory=list)
    step_starts: list[int] = field(default_factory=list)
    _held: list[tuple[str, int, int]] = field(default_factory=list)
    """(what, start, end): when the host launched nothing since the step began, in order."""

    def __post_init__(self) -> None:
        self.thread = self.launcher = self.process.thread()
        self.device = self.process.device(self.rank % 8)
        self.place = place_of(self.spec, self.rank)
        self.groups = groups_of(self.spec, self.rank)
        self.clock = self.spec.clock(self.rank)
        # Every session is open before the first one does anything.
        opened = max((c.session_start_ns for c in self.spec.clocks), default=0)
        self.host_ns = self.now_ns = opened + 1_000_000

    # The host.

    def range(self, name: str, start_ns: int, end_ns: int, **more: object) -> None:
        """A range of the thread that launches now, given in true time."""
        self.launcher.range(name, self.clock.local(start_ns), self.clock.local(end_ns), **more)  # type: ignore[arg-type]

    def launch(self) -> tuple[Launch, int]:
        """The next CUDA call, and the true time at which it returns."""
        start = self.host_ns
        self.host_ns = start + API_NS + self.spec.between_ns
        return (self.launcher, self.clock.local(start), self.clock.local(start + API_NS)), start + API_NS

    def introduce(self) -> None:
        """What a capture says at its start: communicators made, and the trainer's marks."""
        begin = self.host_ns - 900_000
        for number, group in enumerate(self.groups.values()):
            payload = NcclPayload(
                communicator=group.communicator,
                ranks=len(group.ranks),
                rank=group.ranks.index(self.rank),
                device=self.device.info.ordinal,
            )
            at = begin + number * 100_000
            self.range("ncclCommInitRankConfig", at, at + 90_000, domain=DOMAIN, payload=payload)
        if self.spec.group_marks:
            at = self.clock.local(self.host_ns - 200_000)
            self.thread.mark(f"perfdoc.rank {self.rank} world={self.spec.world_size} device=cuda", at)
            for group in self.groups.values():
                self.thread.mark(group.mark(), at)

    def hold(self, what: Literal["data", "gc"], duration_ns: int) -> None:
        """The host loads data, or collects garbage, and launches nothing."""
        begin, end = self.host_ns, self.host_ns + duration_ns
        self.range(f"perfdoc.{what}", begin, end)
        self._held.append((what, begin, end))
        self.host_ns = end + self.spec.between_ns

    def wait_for_device(self) -> None:
        """The host reads a loss: it blocks until the device has nothing left."""
        end = max(self.now_ns, self.host_ns) + 3_000
        local = self.clock.local
        self.thread.synchronize("stream", local(self.host_ns), local(end), stream=DEFAULT_STREAM)
        self.host_ns = end + self.spec.between_ns

    def call_nccl(
        self, name: str, group: Group, size_bytes: int, peers: tuple[tuple[str, int], ...]
    ) -> tuple[Launch, int]:
        """An NCCL call's ranges around its launch; with peers a group of (ncclSend or ncclRecv, peer)."""
        begin = self.host_ns
        if peers:
            self.range("ncclGroupStart", begin, begin + 300, domain=DOMAIN)
            for number, (call, peer) in enumerate(peers):
                payload = NcclPayload(
                    communicator=group.communicator, bytes=size_bytes, peer=group.ranks.index(peer)
                )
                at = begin + 400 + 600 * number
                self.range(call, at, at + 500, domain=DOMAIN, payload=payload)
            begin += 400 + 600 * len(peers)
        self.host_ns = begin + 1_200
        launch, returned = self.launch()
        if peers:
            self.range("ncclGroupEnd", begin, returned + 200, domain=DOMAIN)
        else:
            reduction = "Avg" if "Reduce" in name else None
            payload = NcclPayload(communicator=group.communicator, bytes=size_bytes, reduction=reduction)
            self.range(name, begin, returned + 200, domain=DOMAIN, payload=payload)
        return launch, returned

    def order_streams(self, before: int, after: int, done_ns: int | None = None) -> None:
        """What runs next on `after` waits for what was launched on `before`: a record and a wait."""
        done = None if done_ns is None else self.clock.local(done_ns)
        record = self.device.record_event(before, launch=self.launch()[0], done_ns=done)
        self.device.wait_event(after, record, launch=self.launch()[0])

    # The device.

    def stretch(self, leaf: str, end_ns: int) -> None:
        """Account for the device's time up to `end_ns`."""
        assert end_ns >= self.now_ns, (leaf, end_ns, self.now_ns)
        if end_ns > self.now_ns:
            self.log.append(Stretch(leaf, self.now_ns, end_ns))
        self.now_ns = end_ns

    def idle_until(self, start_ns: int, returned_ns: int, stream: int) -> None:
        """Nothing runs until `start_ns`, when something launched by a call starts on a stream."""
        if start_ns == self.now_ns:
            return
        host_end = min(max(returned_ns, self.now_ns), start_ns)
        if host_end > self.now_ns:
            for what, begin, end in self._held:
                self.stretch("idle.host", min(max(begin, self.now_ns), host_end))
                self.stretch(f"idle.{what}", min(max(end, self.now_ns), host_end))
            self.stretch("idle.host", host_end)
            self.stretch("idle.launch_latency", start_ns)
        else:
            other = stream != self.last_stream
            self.stretch("idle.dependency" if other else "idle.launch_latency", start_ns)

    def compute(self, duration_ns: int, *, name: str = GEMM, gap_ns: int = 0) -> int:
        """A kernel alone, `gap_ns` after what came before; its start."""
        launch, returned = self.launch()
        start = max(self.now_ns + gap_ns, returned + LATENCY_NS)
        self.idle_until(start, returned, DEFAULT_STREAM)
        self.kernel(name, start, start + duration_ns, DEFAULT_STREAM, launch)
        self.stretch("compute", start + duration_ns)
        self.last_stream = DEFAULT_STREAM
        return start

    def norm_alone(self) -> None:
        """A norm kernel with nothing beside it, messages of its own pipeline aside."""
        took = self.spec.computes(self.spec.norm_ns)
        start = self.compute(took, name=NORM)
        self.norms.append((start, start + took))

    def copy(self, size_bytes: int, duration_ns: int) -> int:
        """A copy from the host alone on the device; its start."""
        launch, returned = self.launch()
        start = max(self.now_ns, returned + LATENCY_NS)
        self.idle_until(start, returned, DEFAULT_STREAM)
        local = self.clock.local
        self.device.copy(
            "host_to_device", size_bytes, local(start), local(start + duration_ns), launch=launch
        )
        self.stretch("memcpy", start + duration_ns)
        self.last_stream = DEFAULT_STREAM
        return start

    def kernel(self, name: str, start_ns: int, end_ns: int, stream: int, launch: Launch) -> None:
        """A row of the capture; the log does not know of it."""
        grid = (24, 1, 1) if name.startswith("nccl") else (132, 1, 1)
        full = FULL_NAME.format(name) if name.startswith("nccl") else _NORM_FULL if name == NORM else name
        local = self.clock.local
        self.device.kernel(
            name, local(start_ns), local(end_ns), stream=stream, full_name=full, grid=grid, launch=launch
        )

    def communication(
        self, name: str, dimension: str, start_ns: int, end_ns: int, stream: int, launch: Launch
    ) -> None:
        """A communication kernel, hidden or not."""
        self.kernel(name, start_ns, end_ns, stream, launch)
        self.comm.append((dimension, start_ns, end_ns))
