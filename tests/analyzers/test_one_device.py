"""One device is measured on two cores where nothing else runs, else on one, to the same figures."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.base import memory
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.summaries.codec import same
from tests.summaries.made import two_ranks


def test_on_two_cores_and_on_one(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "job")[0]
    one, two = (
        measure_capture(path, WindowRequest(), also=replay_and_keep, alone=alone).ranks
        for alone in (False, True)
    )
    assert one[0].also.replay.tasks == 64
    assert same(one, two)


def test_free_memory_is_given_back_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    memory.give_back(memory.LARGE)  # whatever this system has
    for library in (SimpleNamespace(malloc_trim=lambda pad: asked.append(pad)), SimpleNamespace()):
        memory._malloc_trim.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", lambda _, made=library: made)
        memory.give_back(memory.LARGE - 1)
        memory.give_back(memory.LARGE)
        assert asked == [0]
    memory._malloc_trim.cache_clear()
