"""Copies that nothing hides, against counting nanosecond by nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.tables.device import copy_rows, copy_times
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder


@pytest.mark.parametrize("seed", range(8))
def test_exposed_time_by_kind(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    builder = TimelineBuilder()
    device = builder.process().device()
    hidden = np.zeros(1_000, bool)
    for stream, (name, most) in enumerate(((GEMM, 30), (ALL_REDUCE, 90)), start=7):
        at = 0
        while (at := at + int(rng.integers(1, 80))) < 900:
            end = at + int(rng.integers(1, most))
            device.kernel(name, at, end, stream=stream)
            hidden[at:end] = True
            at = end
    wanted: dict[str, tuple[int, int, int]] = {}
    for stream, kind in enumerate(("host_to_device", "device_to_host", "device_to_device"), start=20):
        at, count, exposed = 0, 0, 0
        while (at := at + int(rng.integers(1, 200))) < 900:
            end = at + int(rng.integers(1, 60))
            device.copy(kind, 10, at, end, stream=stream)
            count, exposed, at = count + 1, exposed + int((~hidden[at:end]).sum()), end
        if count:
            wanted[kind.replace("_", " ")] = (count, exposed, 10 * count)
    view = view_of(builder, tmp_path)
    found = copy_times(copy_rows(view))
    assert {c.kind: (c.count, c.exposed_ns, c.bytes) for c in found} == wanted
    assert [c.exposed_ns for c in found] == sorted((c.exposed_ns for c in found), reverse=True)
