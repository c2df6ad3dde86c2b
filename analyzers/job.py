"""What takes all captures together: MFU, and everything that compares ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.mfu import Mfu, MfuRank, measure_mfu
from perfdoc.traces.job_facts import JobFacts, common_facts


@dataclass(frozen=True, kw_only=True)
class JobMeasurement:
    """What was measured over all captures."""

    facts: JobFacts
    """What all captures' surroundings agree on."""
    world_size: int | None
    """Ranks of the job, as far as it is known."""
    mfu: Mfu


def measure_job(captures: Sequence[CaptureMeasurement]) -> JobMeasurement:
    """Measure across captures; at least one, each with at least one rank."""
    facts = common_facts([c.facts for c in captures])
    world_size = max((c.world_size for c in captures if c.world_size is not None), default=None)
    ranks = [r for c in captures for r in c.ranks]
    return JobMeasurement(
        facts=facts,
        world_size=facts.world_size or world_size,
        mfu=measure_mfu(
            [MfuRank(gpu_name=r.device.gpu_name, window=r.window, ledger=r.ledger) for r in ranks],
            facts,
            world_size,
            communicates=any(r.communication for r in ranks),
        ),
    )
