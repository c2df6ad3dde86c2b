"""Ranks and jobs rebuilt from captures, for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.pipeline.rank import pipeline_rank
from perfdoc.analyzers.pipeline.transfers import message_moments
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay_job
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.planted.job import JobSpec, planted_job


def job_of(views: Sequence[DeviceView], facts: JobFacts) -> tuple[Replay, Rebuilt | None]:
    """Matched, aligned, joined and run."""
    calls = [collective_calls(v) for v in views]
    matches = match_collectives(calls, facts)
    messages = message_moments([pipeline_rank(v) for v in views], facts)
    clocks = align_clocks(matches, calls, messages)
    return replay_job([rebuild_rank(v) for v in views], calls, matches, clocks)


def planted(spec: JobSpec, folder: Path) -> tuple[Replay, Rebuilt]:
    """A planted job through real Nsight files."""
    job = planted_job(spec)
    views = [v for path in job.write(folder, force=True) for v in views_of(read_trace(path), job.facts())]
    replay, rebuilt = job_of(views, job.facts())
    assert rebuilt is not None
    return replay, rebuilt


def as_dp(rebuilt: Rebuilt) -> Rebuilt:
    """The same with all its communication data-parallel."""
    dimension = np.where(
        rebuilt.graph.kind == TaskKind.COMMUNICATION, DIMENSIONS.index("dp"), rebuilt.dimension
    )
    return replace(rebuilt, dimension=dimension.astype(np.int8))


def length(rebuilt: Rebuilt) -> int:
    """Of its replay, in ns."""
    return rebuilt.span(schedule(rebuilt.graph).end_ns)


def after(rebuilt: Rebuilt, *edits: Edit) -> int:
    """The length with these changes."""
    for edit in edits:
        rebuilt = edit.apply(rebuilt)
    return length(rebuilt)
