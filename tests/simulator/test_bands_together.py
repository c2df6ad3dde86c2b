"""Several faults at once: what taking all away is predicted to save holds what all cost together."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.overlap import overlapped, without_queueing
from perfdoc.simulator.replay.predict import predict
from tests.amount import some
from tests.simulator.simulated import replayed, simulated


@pytest.mark.parametrize(
    ("layout", "faults", "edits"),
    some(
        [
            ("dp=4", ("no_overlap=dp", "slow_data=60"), (overlapped("dp"), without_host_time("data"))),
            ("dp=4", ("gc=60", "late_rank=2:1.2"), (without_host_time("gc"), without_straggler(2, "dp"))),
            (
                "tp=2,dp=2",
                ("max_connections", "slow_data=40"),
                (without_queueing(), without_host_time("data")),
            ),
            ("cp=2,dp=2", ("exposed_cp", "no_overlap=dp"), (overlapped("cp"), overlapped("dp"))),
            (
                "dp=4",
                ("small_buckets=10", "late_rank=1:1.1"),
                (rebucketed(80_000_000), without_straggler(1, "dp")),
            ),
            (
                "tp=2,dp=2",
                ("no_overlap=dp", "gc=30", "max_connections"),
                (without_queueing(), overlapped("dp"), without_host_time("gc")),
            ),
        ],
        lambda case: len(case[2]) == 3,
    ),
)
def test_the_band_of_all_holds_what_all_cost(
    layout: str, faults: tuple[str, ...], edits: tuple[Edit, ...], tmp_path: Path
) -> None:
    job = simulated(layout, *faults)
    found, rebuilt = replayed(job, tmp_path)
    cost = (job.simulation.makespan_ns - simulated(layout).simulation.makespan_ns) / 2e6
    gain = predict(rebuilt, found, edits)
    assert gain.low_ms is not None
    assert gain.high_ms is not None
    assert 0 < gain.low_ms <= cost <= gain.high_ms
    alone = [predict(rebuilt, found, [edit]) for edit in edits]
    assert gain.low_ms >= max(a.low_ms or 0.0 for a in alone)
