"""Kernels beside communication, laid slot by slot: the truth that contention tests plant."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.results import DeviceContention
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_REDUCE
from tests.captures.timeline import TimelineBuilder

NORM = (
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<"
    "transformer_engine::normalization::Kernel_traits<__nv_bfloat16, float>>(Params)"
)
SLOT_NS = 100_000


class Plan:
    """Kernels in slots of 100 us each, one after another."""

    def __init__(self) -> None:
        self.builder = TimelineBuilder()
        self.device = self.builder.process().device()
        self.now = 0

    def slot(
        self,
        duration: int,
        *,
        name: str = NORM,
        comm: int = 0,
        comm_blocks: int = 24,
        crowd: int = 0,
        grid: int = 132,
        copy: bool = False,
    ) -> None:
        """A kernel at the slot's start; communication on stream 20 and other compute on stream 13 beside it
        for so long from the same time on."""
        self.device.kernel(name, self.now, self.now + duration, grid=(grid, 1, 1))
        if comm:
            self.device.kernel(
                ALL_REDUCE, self.now, self.now + comm, stream=20, grid=(comm_blocks, 1, 1), block=(544, 1, 1)
            )
        if copy:
            self.device.copy("peer_to_peer", 4096, self.now, self.now + duration, stream=21)
        if crowd:
            self.device.kernel("other_kernel", self.now, self.now + crowd, stream=13)
        self.now += SLOT_NS

    def measure(self, folder: Path) -> DeviceContention:
        return norm_contention(view_of(self.builder, folder))[0]


def planted() -> Plan:
    """Ten norms of 10 us alone, twelve of 15 us beside an all-reduce, and one of each other sort."""
    plan = Plan()
    for _ in range(10):
        plan.slot(10_000)
    for i in range(12):
        plan.slot(15_000, comm=15_000 if i < 9 else 8_000)
    plan.slot(11_000, comm=5_000)
    plan.slot(40_000, comm=40_000, crowd=20_000)
    plan.slot(90_000, crowd=5_000)  # crowded too, beside no communication: 5,000 of 90,000 are over 5 %
    return plan
