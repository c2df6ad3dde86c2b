"""Headroom of GPU memory: snapshots by rank against the GPUs' memory sizes in the captures."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.figures import gib
from perfdoc.results.memory import DeviceMemory
from perfdoc.rules.engine.needs import GPUS, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Evidence

KEEP_FREE_FRAC = 0.1
"""Of a GPU's memory, kept free by all advice: the CUDA context, NCCL and libraries need what PyTorch has not
reserved, and steps differ."""
MIN_FREE_FRAC = 0.3
"""Of the tightest GPU's memory: with as much never reserved, there is memory to spare."""
NO_SNAPSHOT = "no memory snapshot was given"


@dataclass(frozen=True, kw_only=True)
class Room:
    """One device of one snapshot."""

    device: DeviceMemory
    free_bytes: int | None
    """Never reserved by PyTorch; None if the size of the GPU's memory is unknown."""
    total_bytes: int | None

    @property
    def failed(self) -> int:
        """Allocations that failed."""
        return self.device.oom_events or 0

    @property
    def forced(self) -> int:
        """Allocations that succeeded only after cached memory was released."""
        return self.device.calls.forced_releases or 0 if self.device.calls is not None else 0

    @property
    def spare_bytes(self) -> int | None:
        """Bytes that advice may use, at least 0."""
        if self.free_bytes is None or self.total_bytes is None:
            return None
        return max(0, self.free_bytes - round(KEEP_FREE_FRAC * self.total_bytes))

    def category_bytes(self, category: str) -> int:
        """Bytes of this category at the peak; 0 if none are known."""
        made_of = self.device.composition
        return 0 if made_of is None else made_of.category_bytes.get(category, 0)


def rooms(case: Case) -> list[Room]:
    """Every device of every snapshot with its GPU's memory size: that of its rank, else the common size of
    all captured GPUs."""
    if case.memory is None or case.memory.state != "measured":
        return []
    sizes = {d.rank: d.memory_bytes for d in case.job.devices}
    common = set(sizes.values())
    all_alike = common.pop() if len(common) == 1 else None
    found = []
    for device in case.memory.devices:
        total = all_alike if device.rank is None else sizes.get(device.rank, all_alike)
        free, reserved = device.headroom_bytes, device.peak_reserved_bytes
        if free is not None and reserved is not None:
            total = free + reserved
        elif total is not None and reserved is not None and not device.reason:
            free = max(0, total - reserved)
        found.append(Room(device=device, free_bytes=free, total_bytes=None if free is None else total))
    return found


def _no_snapshot(case: Case) -> Missing | None:
    if case.memory is None:
        return skipped(NO_SNAPSHOT)
    if case.memory.state != "measured":
        return skipped(case.memory.reason)
    whole = any(device.oom_events is not None for device in case.memory.devices)
    return None if whole or case.memory.processes else skipped(NO_SNAPSHOT)


SNAPSHOT = Need(words="a memory snapshot", missing=_no_snapshot)


def is_short(room: Room) -> bool:
    """Whether an allocation failed or had to release cached memory first, or no more than `KEEP_FREE_FRAC` of
    the device was left; False also if unknown."""
    if room.failed or room.forced:
        return True
    if room.free_bytes is None or not room.total_bytes:
        return False
    return room.free_bytes <= KEEP_FREE_FRAC * room.total_bytes


def shares_of_reserved(case: Case, of: Literal["inactive_split", "pending_free"]) -> list[tuple[float, Room]]:
    """Bytes of this kind over what is reserved at the peak, with their device."""
    found = []
    for room in rooms(case):
        layout = room.device.layout
        size = None if layout is None else getattr(layout, f"{of}_bytes")
        if layout is not None and layout.reserved_bytes and size is not None:
            found.append((size / layout.reserved_bytes, room))
    return found


def worst_share(shares: Sequence[tuple[float, Room]], least: float) -> tuple[float, Room]:
    """The largest share, of devices that are short and have `least` if there are such: another device may
    have more of it and memory to spare."""
    return max(shares, key=lambda s: (s[0] >= least and is_short(s[1]), s[0]))


def tightest(case: Case) -> Room | None:
    """The device with the least headroom; None if one device's is unknown."""
    found = rooms(case)
    if not found or any(r.spare_bytes is None for r in found):
        return None
    return min(found, key=lambda r: r.free_bytes or 0)


def why_unknown(case: Case) -> str:
    """Why `tightest` has no answer."""
    if not rooms(case):
        return case.memory.reason if case.memory is not None and case.memory.reason else NO_SNAPSHOT
    lower_bound = next((r.device.reason for r in rooms(case) if r.device.reason), "")
    return lower_bound or "the GPUs' memory size is not known"


def out_of_memory(case: Case) -> tuple[int, int]:
    """(failed allocations, allocations that had to release cached memory first), over all ranks.

    A rank's failures are in its snapshot and in its samples: the larger number counts.
    """
    if case.memory is None:
        return 0, 0
    shown, sampled = Counter[int | None](), Counter[int | None]()
    for device in case.memory.devices:
        shown[device.rank] += device.oom_events or 0
    for process in case.memory.processes:
        sampled[process.rank] += process.oom_events
    return (shown | sampled).total(), sum(r.forced for r in rooms(case))


MIN_RETRIES = 2
"""Allocations that had to release cached memory first; a single one may be the first step's."""
LARGEST = 3
"""Categories of the peak that are shown."""
NEEDS = (GPUS, SNAPSHOT)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Failed and retried allocations."""

    failed: int
    """Allocations that failed, all ranks."""
    retries: int
    """Allocations that released cached memory first, all ranks."""
    worst: Room | None
    """The device with most failures."""

    @property
    def is_one(self) -> bool:
        """Whether memory is too small."""
        return bool(self.failed) or self.retries >= MIN_RETRIES

    @property
    def reason(self) -> str:
        """The shortage in words."""
        if self.failed:
            return "the GPU runs out of memory"
        return "allocations succeed only after cached memory is released"

    @property
    def counts(self) -> Sequence[Evidence]:
        """The counts."""
        return (
            ("failed allocations, all ranks", str(self.failed)),
            ("allocations that released cached memory first, all ranks", str(self.retries)),
        )

    @property
    def evidence(self) -> Sequence[Evidence]:
        """The counts; if there is a shortage, the first failed request and what fills the peak."""
        found = list(self.counts)
        if not self.is_one or self.worst is None:
            return found
        device = self.worst.device
        if device.out_of_memory:
            request = device.out_of_memory[0]
            where = (
                f"{request.function} ({request.file}:{request.line})" if request.file else "an unknown place"
            )
            found.append((f"first failed request, in {where}", gib(request.requested_bytes)))
            found.append(("free on the device then", gib(request.device_free_bytes)))
        if device.composition is not None:
            made_of = sorted(device.composition.category_bytes.items(), key=lambda c: -c[1])
            found += [
                (f"{name.replace('_', ' ')}, at the peak", gib(size))
                for name, size in made_of[:LARGEST]
                if size
            ]
        return found


def shortage(case: Case) -> Shortage:
    """For a case that meets NEEDS."""
    failed, retries = out_of_memory(case)
    worst = max(rooms(case), key=lambda r: (r.failed, r.forced), default=None)
    return Shortage(failed=failed, retries=retries, worst=worst)
