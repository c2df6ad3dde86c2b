"""Overlap of a pipeline's gradients where nobody says how large the model's ends are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.edits.weight_places import layer_weights
from perfdoc.simulator.replay.predict import predict
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.simulator.rebuilt_of import job_of
from tests.simulator.simulated import facts_of, simulated, written


def test_only_the_ends_of_the_model_are_ends() -> None:
    """Layers 4 to 7 are the last stage of a pipeline: 7 holds what the output does on top of a layer. Layers
    0 to 3 are the first stage: 3 is no end."""
    facts = JobFacts()
    assert layer_weights(facts, np.arange(4, 8), 3.0, (0, 7))[0].tolist() == [1, 1, 1, 4]
    assert layer_weights(facts, np.arange(4), 3.0, (0, 7))[0].tolist() == [4, 1, 1, 1]


@pytest.mark.parametrize(
    "layout",
    some(
        [
            "pp=2,dp=2,mbs=2,micro_batches=4,seq=1024,distributed_optimizer=on",
            "pp=4,dp=2,mbs=2,micro_batches=8,seq=2048,distributed_optimizer=off",
            "pp=2,dp=2,vpp=2,mbs=1,micro_batches=4,seq=2048,sp=on,distributed_optimizer=on",
            "tp=2,pp=2,dp=2,vpp=2,mbs=1,micro_batches=4,seq=2048,sp=off,distributed_optimizer=on",
        ],
        lambda layout: "seq=1024" in layout,
    ),
)
def test_the_band_holds_what_the_fault_costs(layout: str, tmp_path: Path) -> None:
    job = simulated(layout, "no_overlap=dp")
    facts = replace(facts_of(job), model=None)
    views = [v for path in written(job, tmp_path) for v in views_of(read_trace(path), facts)]
    replay, rebuilt = job_of(views, facts)
    assert rebuilt is not None
    gain = predict(rebuilt, replay, [overlapped("dp")])
    cost_ms = job.costs[0].cost_ns / job.steps / 1e6
    assert gain.low_ms is not None, gain
    assert gain.high_ms is not None, gain
    assert gain.low_ms <= cost_ms <= gain.high_ms, (cost_ms, gain)
