"""One device is measured on two cores where nothing else runs, else on one, to the same figures."""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoc.analyzers.base import memory
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.measure_device import DeviceAnalysis, RankMeasurement, measure_device
from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.measuring import measure_all
from perfdoc.diagnose.workers import Here, T, Task
from perfdoc.profiling import malloc, telling
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces import lookups
from tests.summaries.made import same, two_ranks


class Elsewhere:
    """A place that may have others beside it."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[T]:
        yield from Here().run(tasks)


def test_on_two_cores_and_on_one(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "job")[0]
    one, two = (
        measure_capture(path, WindowRequest(), also=replay_and_keep, alone=alone).ranks
        for alone in (False, True)
    )
    assert one[0].also.replay.tasks == 64
    assert same(one, two)


def test_devices_of_a_large_trace_are_measured_in_turn_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = two_ranks(tmp_path / "job")[0]
    whole = measure_capture(path, WindowRequest()).ranks
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(lookups, "_LARGE_ROWS", 0)
    monkeypatch.setattr(telling, "QUIET_S", -1.0)
    assert same(measure_capture(path, WindowRequest()).ranks, whole)
    assert "1 of 1 devices analysed" in capsys.readouterr().err


@pytest.mark.parametrize("place", [None, Elsewhere()])
def test_one_device_takes_a_second_core_only_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Elsewhere | None
) -> None:
    """Elsewhere other processes measure beside it."""
    given: list[bool] = []

    def measured(view: DeviceView, also: DeviceAnalysis | None, beside: Executor | None) -> RankMeasurement:
        given.append(beside is not None)
        return measure_device(view, also, beside)

    monkeypatch.setattr("perfdoc.analyzers.measure.measure_device", measured)
    request = parse_request([str(two_ranks(tmp_path / "job")[0])], replay=False, jobs=1)
    assert len(measure_all(request, place=place).captures) == 1
    assert given == [place is None]


def test_free_memory_is_given_back_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    memory.give_back(memory.LARGE)  # whatever this system has

    def asks(pad: int) -> None:
        asked.append(pad)

    for library in (SimpleNamespace(malloc_trim=asks), SimpleNamespace()):
        malloc._c_function.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", lambda _, made=library: made)
        memory.give_back(memory.LARGE - 1)
        memory.give_back(memory.LARGE)
        assert asked == [0]
    malloc._c_function.cache_clear()


@pytest.mark.parametrize(
    ("most", "asked_for"),
    [
        (1 << 26, [(-8, 1), (-3, 1 << 26), (-1, 1 << 28)]),
        (1 << 25, [(-8, 1), (-3, 1 << 26), (-3, 1 << 25), (-1, 1 << 28)]),
        (1 << 20, [(-8, 1), (-3, 1 << 26), (-3, 1 << 25)]),
    ],
)
def test_free_memory_is_used_again_where_the_c_library_can(
    monkeypatch: pytest.MonkeyPatch, most: int, asked_for: list[tuple[int, int]]
) -> None:
    """By the numbers of glibc's malloc.h: one arena, arrays of 64 MiB from it (32 MiB of an older glibc), 256
    MiB of it kept, but not where it takes neither: then every array would be mapped."""
    asked: list[tuple[int, int]] = []

    def option(number: int, value: int) -> int:
        asked.append((number, value))
        return int(number != -3 or value <= most)

    for library in (SimpleNamespace(mallopt=option), SimpleNamespace()):
        malloc._c_function.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", lambda _, made=library: made)
        malloc.reuse_memory()
        assert asked == asked_for
    malloc._c_function.cache_clear()
