"""Ranges that are there are proposed before new ones are asked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results.capture_parts import RangeProposal
from perfdoc.simulator.captures.nsys.sqlite import write_nsys_sqlite
from perfdoc.simulator.captures.timeline import TimelineBuilder
from tests.analyzers.tiny import GEMM


def laid(names: list[tuple[str, int, int]], *, kernels: int = 100) -> TimelineBuilder:
    """Kernels launched every 10 ns, on the thread of the ranges."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for name, start, end in names:
        thread.range(name, start, end, kind="start_end")
    for i in range(kernels):
        device.kernel(GEMM, 10 * i + 5, 10 * i + 9, launch=(thread, 10 * i, 10 * i + 2))
    return builder


def proposed(folder: Path, names: list[tuple[str, int, int]]) -> list[RangeProposal]:
    path = write_nsys_sqlite(laid(names).build(), folder / "ranges.sqlite")
    (rank,) = diagnose([measure_capture(path, WindowRequest())]).ranks
    return rank.window.proposals


def pattern_of(proposal: RangeProposal) -> str:
    return shlex.split(proposal.option)[1].removeprefix("range:")


def test_one_kind_that_repeats_and_tiles(tmp_path: Path) -> None:
    names = [("FULL_EVAL_RUN", 250 * i, 250 * i + 240) for i in range(4)]
    whole = [("everything", 0, 1000), *(("layer", 50 * i, 50 * i + 45) for i in range(20))]
    (found,) = proposed(tmp_path, [*whole, *names])
    # 24 of each 25 launches lie in the range. Layers tile as well, but there are more of them.
    assert (found.names, found.count, found.launches_frac) == (["FULL_EVAL_RUN"], 4, 0.96)
    assert found.option == "--step-range '^FULL_EVAL_RUN$'"


def test_forward_and_backward_that_alternate(tmp_path: Path) -> None:
    names = [
        *(("forward pass", 200 * i, 200 * i + 80) for i in range(5)),
        *(("backward pass", 200 * i + 80, 200 * i + 190) for i in range(5)),
        ("run", 0, 1000),
        *(("attention", 200 * i + 10, 200 * i + 40) for i in range(5)),
    ]
    (found,) = proposed(tmp_path, names)
    assert (found.names, found.count, found.launches_frac) == (["forward pass", "backward pass"], 5, 0.95)
    assert found.option == "--step-range '^forward pass$'"


def test_one_forward_and_one_backward_are_a_window(tmp_path: Path) -> None:
    names = [("init params", 0, 100), ("forward pass", 100, 500), ("backward pass (1/2)", 500, 1000)]
    (found,) = proposed(tmp_path, names)
    assert (found.names, found.count, found.launches_frac) == (
        ["forward pass", "backward pass (1/2)"],
        1,
        0.9,
    )
    pattern = re.compile(pattern_of(found))
    assert [bool(pattern.search(n)) for n, _, _ in names] == [False, True, True]


def test_numbered_names_are_one_kind(tmp_path: Path) -> None:
    (found,) = proposed(tmp_path, [(f"epoch {i} part", 100 * i, 100 * i + 95) for i in range(10)])
    assert (found.names, found.count) == (["epoch # part"], 10)
    pattern = re.compile(pattern_of(found))
    assert [bool(pattern.search(n)) for n in ("epoch 12 part", "epoch x part", "epoch 1 parts")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "names",
    [
        [],
        [("everything", 0, 1000)],
        [(f"aten::mm, op_id = {i}", 100 * i, 100 * i + 95) for i in range(10)],  # operators
        [("load", 200 * i, 200 * i + 100) for i in range(5)],  # half of the launches
        [("left", 0, 600), ("right", 400, 1000)],  # overlap
    ],
)
def test_nothing_that_fits(tmp_path: Path, names: list[tuple[str, int, int]]) -> None:
    assert proposed(tmp_path, names) == []


def test_the_finding_names_them_before_new_ranges(tmp_path: Path) -> None:
    path = write_nsys_sqlite(
        laid([("pass", 100 * i, 100 * i + 95) for i in range(10)]).build(), tmp_path / "r.sqlite"
    )
    rules = {r.code: r for r in diagnose([measure_capture(path, WindowRequest())]).rules}
    remedy = rules["PD902"].remedy
    assert rules["PD902"].state == "fires"
    assert 0 <= remedy.find("--step-range '^pass$'") < remedy.find("range_push")
