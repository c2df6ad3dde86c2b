"""What the capture itself adds to the host's time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case

_CLOSE_NS = 20_000
"""Between two launches: as close, the tracing of each call is a share of it that counts."""


def slowed_by(case: Case) -> Sequence[str]:
    """What any capture records that slows its host."""
    return list(dict.fromkeys(words for capture in case.captures for words in capture.slowed_by))


def cost_evidence(case: Case) -> Iterator[Evidence]:
    """What was recorded, how close launches are, and how much it costs where a step log tells."""
    if found := slowed_by(case):
        yield Evidence(label="the capture itself slows the host: it records", value=", ".join(found))
    intervals = [r.host.small_kernels.median_launch_interval_ns for r in case.ranks]
    close = [ns for ns in intervals if ns is not None and ns < _CLOSE_NS]
    if close:
        yield Evidence(label="each CUDA call is traced, one every", value=brief(min(close)))
    overhead = case.job.step_times.overhead
    if overhead.frac is not None:
        yield Evidence(
            label="profiled steps against the others, by the step log", value=per_cent(overhead.frac)
        )
