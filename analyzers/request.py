"""What is to be measured and how: one request for the command line, a notebook, an agent and a comparison."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.records import dataclass
from perfdoc.traces.job_facts import JobFacts

if TYPE_CHECKING:
    from perfdoc.analyzers.memory.snapshot import MemoryFiles


@dataclass(frozen=True, kw_only=True)
class AnalysisRequest:
    """Captures, and how they are measured and judged."""

    captures: Sequence[Path]
    memory: Sequence[MemoryFiles] = ()
    window: WindowRequest = field(default_factory=WindowRequest)
    comm_kernel: re.Pattern[str] | None = None
    """Names of kernels that are communication because the user says so."""
    given: JobFacts = field(default_factory=JobFacts)
    """What the user says of the job."""
    config: Path | None = None
    """A file with settings of the job, which go before those of run.json."""
    replay: bool = True
    """Whether each rank's window is replayed."""
    leave_out: bool = False
    """Whether one capture of several that cannot be read is left out, which the diagnosis tells."""
    jobs: int = 1
    """Files read at once, at most."""
