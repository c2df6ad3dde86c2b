"""From captures to the pipeline results of their devices, as the worker processes make them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.pipeline.rank import PipelineRank, pipeline_rank
from tests.analyzers.device_views import views_of_file


def pipeline_ranks(paths: Iterable[Path]) -> list[PipelineRank]:
    """The result of every device of some captures."""
    return [pipeline_rank(view) for path in paths for view in views_of_file(path)]


@dataclass(frozen=True, kw_only=True)
class RankOffsets:
    """The plainest common time: how far each rank's clock is ahead."""

    offset_ns: Sequence[int]
    resolution_ns: int | None = 0

    def resolution_between(self, members: Sequence[int]) -> int | None:
        """The same for all."""
        return self.resolution_ns

    def aligned(self, member: int, time_ns: I64) -> I64:
        """Times less the offset."""
        return time_ns - self.offset_ns[member]
