"""Ranks and jobs rebuilt from captures, for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.analyzers.clocks.alignment import align_clocks
from perfdoc.analyzers.communication.calls import collective_calls
from perfdoc.analyzers.communication.dimensions import attribute_dimensions
from perfdoc.analyzers.device.activity import DIMENSIONS, device_activity
from perfdoc.analyzers.device.cpu_rank import cpu_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.told_by_launch import told_by_launch
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.analyzers.pipeline.rank import pipeline_rank
from perfdoc.analyzers.pipeline.transfers import message_moments
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay_job
from perfdoc.traces import Trace
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.planted.job import JobSpec, planted_job


def views_of(trace: Trace, facts: JobFacts | None = None) -> list[DeviceView]:
    """The view of every rank of a trace that did something, on a GPU or on the CPU; by rank or ordinal."""
    marks = marked_ranks(trace)
    trace = with_marked_ranks(trace, marks)
    on_cpu = {process for process, mark in marks.items() if mark.device == "cpu"}
    launches, known = find_launches(trace), find_known_ranges(trace)
    kinds = told_by_launch(trace, classify_kernels(trace), launches)
    views = []
    for index, device in enumerate(trace.devices):
        activity = device_activity(trace, index, kinds, launches)
        if activity is not None:
            activity = attribute_dimensions(trace, activity, known, launches, facts)
        elif device.process in on_cpu:
            found = cpu_activity(trace, index)
            activity = found[0] if found is not None else None
        if activity is not None:
            window, step_ranges = find_window(trace, activity, WindowRequest(), known)
            views.append(
                DeviceView(
                    trace=trace,
                    activity=activity,
                    window=window,
                    step_ranges=step_ranges,
                    kinds=kinds,
                    launches=launches,
                    known=known,
                    facts=facts or JobFacts(),
                )
            )
    return sorted(views, key=lambda v: (v.device.rank or 0, v.device.ordinal))


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
