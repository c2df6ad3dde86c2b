"""What an analysis is asked to measure. It imports nothing that measures: reading begins before that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.analyzers.device.window_request import WindowRequest
from perfdoc.traces.job_facts import JobFacts

if TYPE_CHECKING:
    from perfdoc.analyzers.memory.memory_files import MemoryFiles


@dataclass(frozen=True, kw_only=True)
class Work:
    """What to measure, and how."""

    captures: Sequence[Path]
    memory: Sequence[MemoryFiles]
    request: WindowRequest
    given: JobFacts
    """What the user says of the job."""
    replay: bool
    """Whether each rank's window is run again."""
