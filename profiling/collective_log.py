"""One line per collective of a rank: when it was issued, waited for and complete.

A PyTorch profiler trace has no waits, no group on gloo's rows and no ranges that end on another thread, so
the facts lie beside the trace as well, on the clock that both kinds of capture can be put on: UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from perfdoc.profiling.collective_name import Dimension
from perfdoc.profiling.json_lines import LineWriter, read_lines

Completion: TypeAlias = Literal["callback", "wait", "device", "unknown"]


class CollectiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of one rank. Times are nanoseconds of UTC since 1970; None where it did not happen."""

    operation: str
    """As in `CollectiveName.operation`."""
    group: str
    """Process-group description."""
    group_name: str
    bytes: int | None
    sequence: int
    sent_bytes: int | None = None
    peer: int | None = None
    dimension: Dimension | None = None
    """As in `CollectiveName.dimension`."""
    issue_ns: int
    """The call began."""
    issued_ns: int
    """The call returned; the backend's threads, if it has any, work on."""
    wait_start_ns: int | None = None
    """The first wait() began."""
    wait_end_ns: int | None = None
    done_ns: int | None = None
    """The collective was complete on this rank."""
    completion: Completion
    """How `done_ns` is known. callback: reported by the backend's thread, late by the time that thread
    needed for Python's lock. wait: the end of wait(), so the latest that it can have been; so it is where
    the caller waited at once (`async_op=False`). device: runs on a GPU, whose kernels tell. unknown: never
    waited for and never reported."""


def write_collectives(path: Path, records: Iterable[CollectiveRecord]) -> None:
    """Append records to `collectives/rank<N>.jsonl`; made where it does not exist.

    Raises OSError where it cannot be written.
    """
    with LineWriter(path) as lines:
        for record in records:
            lines.write(record)


def read_collectives(path: Path) -> Iterator[CollectiveRecord]:
    """The records of a side file in the order of completion.

    A last line that is not whole is left out. Raises CaptureError for a line that is whole and no record.
    """
    return read_lines(path, CollectiveRecord)
