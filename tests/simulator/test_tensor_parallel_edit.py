"""TP in place of DP, by hand: what is reduced how often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.profiling.manifest import ModelShape
from perfdoc.simulator.captures.timeline import NcclPayload, TimelineBuilder
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.edits import tensor_instead_of_data
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.tiny import ALL_REDUCE, GEMM, trace_of
from tests.simulator.rebuilt_of import views_of

US = 1_000
MODEL = ModelShape(
    name="three layers",
    layers=3,
    hidden_size=100,
    ffn_hidden_size=400,
    attention_heads=4,
    query_groups=4,
    kv_channels=25,
    vocabulary=1000,
    sequence_length=1000,
    gated_mlp=False,
)


def step(folder: Path) -> Rebuilt:
    """A forward and a backward of ten kernels of 10 us and ten of 100 each, then all-reduces of 100 kB in
    76 us and of 1 MB in 400 us on the same stream: 40 us and 0.36 ns a byte. 2676 us in all."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    group = "group=DATA_PARALLEL_GROUP pg=1 ranks=0-1 communicator=0x0000000000000005"
    thread.range(f"perfdoc.group {group}", 0, 0)
    thread.range("perfdoc.forward", 0, 20 * US)
    thread.range("perfdoc.backward", 20 * US, 40 * US)
    at = 5
    for i in range(40):
        took = 10 if i % 2 else 100
        device.kernel(GEMM, at * US, (at + took) * US, stream=7, launch=(thread, i * US, (i + 1) * US))
        at += took
    for host, size, took in ((50, 100_000, 76), (60, 1_000_000, 400)):
        payload = NcclPayload(communicator=5, bytes=size, reduction="Sum")
        thread.range("ncclAllReduce", host * US, (host + 3) * US, domain="NCCL", payload=payload)
        launch = (thread, (host + 1) * US, (host + 2) * US)
        device.kernel(ALL_REDUCE, at * US, (at + took) * US, stream=7, launch=launch)
        at += took
    facts = JobFacts(
        world_size=2,
        tp=1,
        cp=1,
        pp=1,
        dp=2,
        model=MODEL,
        micro_batch_sequences=1,
        sequence_length=1000,
        dtype="bf16",
    )
    (view,) = views_of(trace_of(builder, folder), facts)
    return rebuild_rank(view)


def test_reductions_of_a_pass(tmp_path: Path) -> None:
    """Twice as many passes: each of 40 kernels costs its 10 us again, 2600 us. In each a reduction of 200 kB,
    40 + 2 x 72 us, twice for each of 3 layers and once at its end: 2 x 2 x 7 x 184. In the 2 forwards 3 of
    the loss, 40 us each. The 476 us of gradients are gone. (The first call is 1 us, within which it may be
    longer.)"""
    rebuilt = step(tmp_path)
    assert rebuilt.span(schedule(rebuilt.graph).end_ns) == 2676 * US
    edited = tensor_instead_of_data().apply(rebuilt)
    gradients = rebuilt.bytes > 0
    assert np.count_nonzero(gradients) == 2
    expected = 2600 + 28 * 184 + 2 * 3 * 40
    assert edited.span(schedule(edited.graph).end_ns) == pytest.approx(expected * US, abs=2 * US)
