"""Whether allocations failed, or only just succeeded, and where most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.results.figures import gib
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPUS
from perfdoc.rules.facts.memory_room import SNAPSHOT, Room, out_of_memory, rooms

MIN_RETRIES = 2
"""Allocations that had to give cached memory back first; a single one may be the first step's."""
LARGEST = 3
"""Categories of the peak that are shown."""
NEEDS = (GPUS, SNAPSHOT)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """How far memory suffices."""

    failed: int
    """Allocations that failed, all ranks."""
    retries: int
    """Allocations that gave cached memory back first, all ranks."""
    worst: Room | None
    """The device that is shortest."""

    @property
    def is_one(self) -> bool:
        """Whether memory does not suffice."""
        return bool(self.failed) or self.retries >= MIN_RETRIES

    @property
    def reason(self) -> str:
        """In words."""
        if self.failed:
            return "the GPU's memory does not suffice"
        return "allocations succeed only after cached memory has been given back"

    @property
    def counts(self) -> Sequence[Evidence]:
        """How often."""
        return (
            Evidence(label="allocations that failed, all ranks", value=str(self.failed)),
            Evidence(
                label="allocations that gave cached memory back first, all ranks", value=str(self.retries)
            ),
        )

    @property
    def evidence(self) -> Sequence[Evidence]:
        """How often; where there is one, what the first failed request was and what fills the peak."""
        found = list(self.counts)
        if not self.is_one or self.worst is None:
            return found
        device = self.worst.device
        if device.out_of_memory:
            asked = device.out_of_memory[0]
            where = f"{asked.function} ({asked.file}:{asked.line})" if asked.function else "an unknown place"
            found.append(
                Evidence(label=f"first failed request, in {where}", value=gib(asked.requested_bytes))
            )
            found.append(Evidence(label="the device had free", value=gib(asked.device_free_bytes)))
        if device.composition is not None:
            made_of = sorted(device.composition.category_bytes.items(), key=lambda c: -c[1])
            found += [
                Evidence(label=f"{name.replace('_', ' ')}, at the peak", value=gib(size))
                for name, size in made_of[:LARGEST]
                if size
            ]
        return found


def shortage(case: Case) -> Shortage:
    """Of a case that has NEEDS."""
    failed, retries = out_of_memory(case)
    worst = max(rooms(case), key=lambda r: (r.failed, r.forced), default=None)
    return Shortage(failed=failed, retries=retries, worst=worst)
