"""What `perfdoc analyze` was asked to hold its figures against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdoc.against.baseline import Given, read_given
from perfdoc.against.compare import against
from perfdoc.against.targets import parse_target
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.diagnosis import Diagnosis
from perfdoc.diff.load import measured_side
from perfdoc.gate.floors import Floor
from perfdoc.knobs.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A baseline that was read, and targets."""

    given: Given | None
    targets: Sequence[Floor]

    @classmethod
    def of(cls, baseline: Path | None, targets: Sequence[str]) -> Asked:
        """Raises ValueError, in one line, for a file or a word that is neither."""
        floors = [parse_target(text) for text in targets]
        return cls(given=None if baseline is None else read_given(baseline), targets=floors)

    def answered(
        self, diagnosis: Diagnosis, captures: Sequence[CaptureMeasurement], settings: Configuration
    ) -> Diagnosis:
        """The diagnosis with its figures held against them. Raises TraceError."""
        here = measured_side("", captures, diagnosis, settings)
        found = against(here, self.given, self.targets, here.facts.run_directory)
        return replace(diagnosis, against=found)
