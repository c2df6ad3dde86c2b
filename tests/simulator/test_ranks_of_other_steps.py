"""Ranks that were captured in different steps of one job."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.base.intervals import Intervals
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.results.replay import Replay
from perfdoc.simulator.replay.basis import Counted, in_window
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.predict import predict
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.planted.job import KINDS, JobSpec, planted_job, planted_steps
from tests.planted.spec import Late
from tests.simulator.rebuilt_of import job_of, planted

SOUND = replace(KINDS["dp4"], steps=4)


def captured(spec: JobSpec, folder: Path, lacks_last: int) -> tuple[Replay, Rebuilt]:
    """The first ranks, so many, in all steps but the last one; the others in all but the first."""
    job, views = planted_job(spec), []
    for rank, path in enumerate(job.write(folder, force=True)):
        (view,) = views_of(read_trace(path), job.facts())
        steps = range(spec.steps - 1) if rank < lacks_last else range(1, spec.steps)
        names = [s.name for s in view.window.step_list]
        wanted = re.compile("|".join(f"^{re.escape(names[i])}$" for i in steps))
        window, ranges = find_window(
            view.trace, view.activity, WindowRequest(step_pattern=wanted), view.known
        )
        views.append(replace(view, window=window, step_ranges=ranges))
    found, rebuilt = job_of(views, job.facts())
    assert rebuilt is not None
    return found, rebuilt


@pytest.mark.parametrize(
    ("what", "spec", "lacks_last"),
    [
        ("data", replace(SOUND, data_ns=5_150_000), 2),
        ("gc", replace(SOUND, gc=Late(rank=0, extra_ns=8_000_000)), 1),
        ("gc", replace(SOUND, steps=3, gc=Late(rank=0, extra_ns=8_000_000)), 1),
    ],
)
def test_a_band_holds_what_a_step_gains(what: str, spec: JobSpec, lacks_last: int, tmp_path: Path) -> None:
    found, rebuilt = captured(spec, tmp_path, lacks_last)
    assert (rebuilt.steps, rebuilt.missing_steps) == (spec.steps, 2)
    sound = replace(SOUND, steps=spec.steps)
    truth = (planted_steps(spec).step_ns - planted_steps(sound).step_ns) / 1e6
    gain = predict(rebuilt, found, [without_host_time(what)])
    assert gain.method == "replay"
    assert gain.low_ms is not None
    assert gain.mid_ms is not None
    assert gain.high_ms is not None
    # What is gained in all lies between the steps that all ranks have and all steps.
    assert gain.low_ms <= truth <= gain.high_ms
    assert 0.8 * truth * (1 - 2 / spec.steps) <= gain.low_ms < gain.mid_ms < gain.high_ms
    assert any(f"{spec.steps} steps all ranks have {spec.steps - 2}" in said for said in gain.assumptions)


@pytest.mark.parametrize(("first_in", "last_in", "collect"), [(1, 1, 1), (0, 1, 2), (0, 2, 2), (1, 2, 2)])
def test_collections_are_of_the_steps_of_the_job(
    first_in: int, last_in: int, collect: int, tmp_path: Path
) -> None:
    """Of three steps the first rank has the first two, the last one the last two; each collects once."""
    _, rebuilt = planted(replace(KINDS["dp4"], steps=3), tmp_path)
    first, *_, last = rebuilt.ranks

    def collecting(frame: RankFrame, step: int) -> RankFrame:
        middle = (frame.step_starts_ns[step] + frame.step_ends_ns[step]) // 2
        once = Intervals(start_ns=np.array([middle]), end_ns=np.array([middle + 1_000]))
        return replace(frame, host={**frame.host, "gc": once})

    early = replace(
        collecting(first, first_in),
        window_end_ns=first.step_ends_ns[1],
        step_starts_ns=first.step_starts_ns[:2],
        step_ends_ns=first.step_ends_ns[:2],
    )
    late = replace(
        collecting(last, last_in),
        window_start_ns=last.step_ends_ns[0],
        step_starts_ns=last.step_starts_ns[1:],
        step_ends_ns=last.step_ends_ns[1:],
    )
    assert in_window(replace(rebuilt, ranks=(early, late))) == Counted(collect=collect, steps=3)
