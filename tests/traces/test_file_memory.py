"""Large arrays in a file: the same values, no memory of their own, and given back."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.analyzers import measure
from perfdoc.analyzers.base import memory
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_trace
from perfdoc.simulator.replay.unedited import replay_and_keep
from perfdoc.traces import file_memory
from perfdoc.traces.codec import same
from perfdoc.traces.file_memory import begin_thread, large_arrays_in_a_file
from perfdoc.traces.load import read_trace
from tests.amount import tries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped so on Linux alone")
LARGE = 1 << 20
"""Bytes, from which on an array is in the file."""


def state() -> Any:
    """Descriptor, end, bytes in use, most of them, what is large."""
    made = file_memory._made()
    assert made is not None
    return made.state


@pytest.fixture
def of_file() -> Iterator[Any]:
    """Bytes of the file that arrays hold."""
    found = state()
    before = int(found[2])
    yield lambda: int(found[2]) - before
    assert int(found[2]) == before, "something was not given back"


def test_only_large_arrays_of_the_thread_that_asks(of_file: Any) -> None:
    """A page more than 8 MB: the head in front of the values."""
    with large_arrays_in_a_file():
        small = np.arange(LARGE // 8 - 1)
        assert of_file() == 0
        large = np.arange(LARGE)
        assert of_file() == 8 * LARGE + 4096
    outside = np.arange(LARGE)
    assert of_file() == 8 * LARGE + 4096
    assert (large == outside).all()
    assert small[-1] == LARGE // 8 - 2
    held = large[:10]
    del large
    assert of_file() == 8 * LARGE + 4096
    del held
    assert of_file() == 0


def test_another_thread(of_file: Any) -> None:
    seen = []

    def work(begin: bool) -> None:
        if begin:
            begin_thread()
        made = np.zeros(LARGE)
        seen.append((of_file() > 0, float(made.sum())))

    for begin in (False, True):
        thread = threading.Thread(target=work, args=(begin,))
        thread.start()
        thread.join()
    assert seen == [(False, 0.0), (True, 0.0)]


def test_a_disk_without_room_leaves_memory(of_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_memory, "LEFT_FREE_BYTES", 1 << 62)
    with large_arrays_in_a_file():
        made = np.ones(LARGE)
        assert of_file() == 0
        assert made.sum() == LARGE


def test_space_that_was_used_before_is_cleared(of_file: Any) -> None:
    with large_arrays_in_a_file():
        for _ in range(3):
            ones = np.ones(LARGE)
            del ones
            assert not np.zeros(LARGE).any()


SIZES = st.sampled_from([0, 1, 1000, LARGE // 8 - 1, LARGE // 8, LARGE // 8 + 1, 300_000])


@settings(max_examples=tries(10, 60))
@given(steps=st.lists(st.tuples(st.sampled_from("nzrd"), st.integers(0, 5), SIZES), max_size=25))
def test_arrays_that_are_made_resized_and_dropped_in_any_order(steps: list[tuple[str, int, int]]) -> None:
    """Held against lists of numbers; both allocators at once."""
    arrays: dict[int, Any] = {}
    wanted: dict[int, Any] = {}
    for number, (what, at, size) in enumerate(steps, 1):
        with large_arrays_in_a_file() if number % 3 else nullcontext():
            if what == "n":
                arrays[at], wanted[at] = np.full(size, number, np.int64), (number, size, size)
            elif what == "z":
                arrays[at], wanted[at] = np.zeros(size, np.int64), (0, size, size)
            elif what == "r" and at in arrays:
                value, filled, _ = wanted[at]
                arrays[at].resize(size, refcheck=False)
                wanted[at] = (value, min(filled, size), size)
            elif what == "d":
                arrays.pop(at, None)
                wanted.pop(at, None)
        for key, (value, filled, length) in wanted.items():
            array = arrays[key]
            assert len(array) == length
            assert (array[:filled] == value).all()
            assert not array[filled:].any()


def test_a_forked_child_takes_nothing_from_its_parent() -> None:
    """It frees what it got, and makes an array where the parent would make its next one."""
    program = """if True:
        import os
        import numpy as np
        from perfdoc.traces.file_memory import large_arrays_in_a_file
        with large_arrays_in_a_file():
            held = np.ones(1 << 18)
            if (child := os.fork()) == 0:
                print(np.full(1 << 18, 7.0).sum(), held.sum(), flush=True)
                del held
                with large_arrays_in_a_file():
                    print(np.full(1 << 18, 7.0).sum(), flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(np.empty(1 << 18).sum(), held.sum())
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    ones = float(1 << 18)
    assert ran.stdout.split() == [str(7 * ones), str(ones), str(7 * ones), "0.0", str(ones)]


def test_memory_that_is_called_a_disk_is_none(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        assert file_memory._gives_back(file.fileno())
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryFile(dir=shm) as file:
        assert not file_memory._gives_back(file.fileno())


def test_a_process_that_may_not_have_as_much() -> None:
    """300 MB of its own, arrays of 800 MB: without the file it is refused them."""
    program = """if True:
        import resource, sys
        import numpy as np
        from perfdoc.traces.file_memory import large_arrays_in_a_file
        with large_arrays_in_a_file():
            pass
        resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))
        if sys.argv[1] == "file":
            with large_arrays_in_a_file():
                held = [np.full(25_000_000, i) for i in range(4)]
        else:
            held = [np.full(25_000_000, i) for i in range(4)]
        print(sum(int(h.sum()) for h in held))
    """
    ran = {
        way: subprocess.run([sys.executable, "-c", program, way], capture_output=True, text=True, check=False)
        for way in ("file", "memory")
    }
    assert ran["file"].stdout == f"{25_000_000 * 6}\n", ran["file"].stderr
    assert ran["memory"].returncode == 1
    assert "MemoryError" in ran["memory"].stderr


@pytest.mark.parametrize(
    "name", ["nsys/ddp_2gpu_rtx3090.sqlite", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"]
)
def test_measurements_are_the_same(shared_traces: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With every array of eight numbers and more in the file."""
    trace = read_trace(shared_traces / name)
    usual = measure_trace(trace, WindowRequest(), None, replay_and_keep)
    monkeypatch.setattr(measure, "is_short_for", lambda _: True)
    large, before = state(), int(state()[1])
    least, large[4] = int(large[4]), 64
    try:
        found = measure_trace(trace, WindowRequest(), None, replay_and_keep)
    finally:
        large[4] = least
    assert int(large[1]) - before > 1000 * 4096
    assert same(usual, found)


def test_ranges_are_read_so_too(shared_traces: Path, monkeypatch: pytest.MonkeyPatch, of_file: Any) -> None:
    """A capture with 778 rows of NVTX."""
    path = shared_traces / "nsys/ddp_2gpu_rtx3090.sqlite"
    usual = read_trace(path)
    monkeypatch.setattr("perfdoc.traces.nsys.read.is_large", lambda _: True)
    monkeypatch.setattr("perfdoc.traces.nsys.read.is_short_of", lambda need: need == 280 * 778)
    large, before = state(), int(state()[1])
    least, large[4] = int(large[4]), 64
    try:
        found = read_trace(path)
    finally:
        large[4] = least
    assert int(large[1]) > before
    for table in ("kernels", "api_calls", "ranges", "copies"):
        assert same(getattr(usual, table), getattr(found, table))
    del found


def test_who_is_short(monkeypatch: pytest.MonkeyPatch, shared_traces: Path) -> None:
    """Two devices of some thousand kernels: 450 bytes for each of the one with most are four fifths of it."""
    trace = read_trace(shared_traces / "nsys/ddp_2gpu_rtx3090.sqlite")
    most = max(int((trace.kernels.device == d).sum()) for d in range(len(trace.devices)))
    assert not memory.is_short_for(trace)
    monkeypatch.setattr("perfdoc.traces.lookups.is_large", lambda _: True)
    for usable, short in ((most * 562, True), (most * 563, False)):
        monkeypatch.setattr(file_memory, "usable_memory_bytes", lambda usable=usable: usable)
        assert memory.is_short_for(trace) is short
