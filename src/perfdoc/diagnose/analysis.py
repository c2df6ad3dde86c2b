"""From captures to their diagnosis: one way for the command, a comparison, a notebook and an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.diagnose.asked import Work
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.place import Place

if TYPE_CHECKING:
    from perfdoc.knobs.configuration import Configuration
    from perfdoc.results import Diagnosis


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """A diagnosis, and what it was made from."""

    diagnosis: Diagnosis
    captures: Sequence[CaptureMeasurement]
    """None where memory alone was looked at."""
    settings: Configuration
    """By which the diagnosis goes."""


def analysed(
    work: Work,
    jobs: int,
    *,
    config: Path | None,
    place: Place | None = None,
) -> Analysed:
    """Measure and diagnose.

    config: the file of --config, which goes before run.json. place: see measure_all. Raises TraceError
    (NoGpuActivityError where no capture shows any activity) and WorkerLostError.
    """
    found = measure_all(work, jobs, place=place)
    if not found.captures and found.silent:
        raise found.silent[0]
    from perfdoc.diagnose.diagnosis import diagnosis_of  # the command imports it beside the reading

    diagnosis, settings = diagnosis_of(found, config)
    return Analysed(diagnosis=diagnosis, captures=found.captures, settings=settings)
