"""Out of memory: failed and retried allocations, and the worst device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPUS
from perfdoc.rules.facts.memory_room import SNAPSHOT, Room, out_of_memory, rooms

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
            Evidence(label="failed allocations, all ranks", value=str(self.failed)),
            Evidence(
                label="allocations that released cached memory first, all ranks", value=str(self.retries)
            ),
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
                f"{request.function} ({request.file}:{request.line})"
                if request.function
                else "an unknown place"
            )
            found.append(
                Evidence(label=f"first failed request, in {where}", value=gib(request.requested_bytes))
            )
            found.append(Evidence(label="free on the device then", value=gib(request.device_free_bytes)))
        if device.composition is not None:
            made_of = sorted(device.composition.category_bytes.items(), key=lambda c: -c[1])
            found += [
                Evidence(label=f"{name.replace('_', ' ')}, at the peak", value=gib(size))
                for name, size in made_of[:LARGEST]
                if size
            ]
        return found


def shortage(case: Case) -> Shortage:
    """For a case that meets NEEDS."""
    failed, retries = out_of_memory(case)
    worst = max(rooms(case), key=lambda r: (r.failed, r.forced), default=None)
    return Shortage(failed=failed, retries=retries, worst=worst)
