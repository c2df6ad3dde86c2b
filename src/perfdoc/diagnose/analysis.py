"""From captures to their diagnosis: one way for the command, a comparison, a notebook and an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.workers import Place

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


def analysed(request: AnalysisRequest, *, place: Place | None = None) -> Analysed:
    """Measure and diagnose.

    place: see measure_all. Raises TraceError (NoGpuActivityError where no capture shows any activity) and
    WorkerLostError.
    """
    found = measure_all(request, place=place)
    if not found.captures and found.silent:
        raise found.silent[0]
    from perfdoc.diagnose.diagnosis import diagnosis_of  # the command imports it beside the reading

    diagnosis, settings = diagnosis_of(found, request.config)
    return Analysed(diagnosis=diagnosis, captures=found.captures, settings=settings)
