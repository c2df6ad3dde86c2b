"""What all parts of the Nsight writer share: options, serial ids, the string table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from perfdoc.simulator.captures.timeline import Timeline

Row: TypeAlias = dict[str, Any]
"""One row of an export, by column; a column that is missing is NULL."""
Rows: TypeAlias = Sequence[Row]
NO_ID = 2**32 - 1
"""What CUPTI writes for "no stream" and "no event"."""
MACHINE = 1 << 48
"""Nsight packs hardware (8 bits), virtual machine (8), pid (24) and tid (24) into one number."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Ways in which exports of one generation differ from each other."""

    text: Literal["inline", "interned", "mixed"] = "mixed"
    """Where NVTX names go: NVTX_EVENTS.text, StringIds, or StringIds only where a domain is named."""
    payloads: Literal["auto", "json", "binary", "none"] = "auto"
    """NCCL payloads as jsonText, as binaryData with schema tables, or lost; auto: what that version does."""
    domain_rows: bool = True
    """Whether NVTX_EVENTS names the domains (captures that start late do not)."""
    event_records: bool = True
    """Whether CUPTI_ACTIVITY_KIND_CUDA_EVENT is there (it is not unless asked for)."""
    api_calls: bool = True
    """Whether CUPTI_ACTIVITY_KIND_RUNTIME is there."""


DEFAULT_OPTIONS = ExportOptions()


def global_pid(pid: int) -> int:
    """Nsight's serial form of a process id."""
    return MACHINE | pid << 24


def global_tid(pid: int, tid: int) -> int:
    """Nsight's serial form of a thread id."""
    return MACHINE | pid << 24 | tid


class Strings:
    """StringIds under construction."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The id of a string, the same for equal strings."""
        return self.ids.setdefault(text, len(self.ids))


def contexts(timeline: Timeline) -> dict[tuple[int, int], int]:
    """Context id of each (pid, device): 1 for a process's first device, then 2, ..."""
    numbers: dict[tuple[int, int], int] = {}
    for device in timeline.devices:
        numbers[device.pid, device.ordinal] = sum(pid == device.pid for pid, _ in numbers) + 1
    return numbers
