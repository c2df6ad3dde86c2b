"""Ranges that are there are proposed before new ones are asked for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.results.capture_parts import RangeProposal
from tests.analyzers.tiny import GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu


def laid(names: list[tuple[str, int, int]], *, kernels: int = 100) -> TimelineBuilder:
    """Kernels launched every 10 ns, on the thread of the ranges."""
    builder, thread, device = one_gpu()
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
    return shlex.split(proposal.option)[0].partition("=")[2].removeprefix("range:")


def test_one_kind_that_repeats_and_tiles(tmp_path: Path) -> None:
    names = [("FULL_EVAL_RUN", 250 * i, 250 * i + 240) for i in range(4)]
    whole = [("everything", 0, 1000), *(("layer", 50 * i, 50 * i + 45) for i in range(20))]
    (found,) = proposed(tmp_path, [*whole, *names])
    # 24 of each 25 launches lie in the range. Layers tile as well, but there are more of them.
    assert (found.names, found.count, found.launches_frac) == (["FULL_EVAL_RUN"], 4, 0.96)
    assert found.option == "--step-range='^FULL_EVAL_RUN$'"


@pytest.mark.parametrize(
    ("name", "found"), [("benchmark step {}", 5), ("profile_step_{}", 5), ("benchmark", 0), ("warmup_{}", 0)]
)
def test_what_is_numbered_runs_more_than_once(name: str, found: int, tmp_path: Path) -> None:
    names = [(name.format(i), 200 * i, 200 * i + 190) for i in range(5)]
    assert [p.count for p in proposed(tmp_path, names)] == [found] * (found > 0)


def test_forward_and_backward_that_alternate(tmp_path: Path) -> None:
    names = [
        *(("forward pass", 200 * i, 200 * i + 80) for i in range(5)),
        *(("backward pass", 200 * i + 80, 200 * i + 190) for i in range(5)),
        ("run", 0, 1000),
        *(("attention", 200 * i + 10, 200 * i + 40) for i in range(5)),
    ]
    (found,) = proposed(tmp_path, names)
    assert (found.names, found.count, found.launches_frac) == (["forward pass", "backward pass"], 5, 0.95)
    assert found.option == "--step-range='^forward.pass$'"


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


def after_start_up(names: list[tuple[str, int, int]], kernels: Sequence[int]) -> TimelineBuilder:
    """Kernels of 1 us at these times (us), the first 100 of them after a load of 900 us each second one."""
    builder, thread, device = one_gpu()
    for name, start, end in names:
        thread.range(name, 1000 * start, 1000 * end, kind="start_end")
    for i in range(10):
        device.kernel(
            GEMM,
            1_000_000 * i + 5_000,
            1_000_000 * i + 6_000,
            launch=(thread, 1_000_000 * i, 1_000_000 * i + 100),
        )
        thread.api("cuModuleLoadData", 1_000_000 * i + 10_000, 1_000_000 * i + 910_000)
    for at in kernels:
        device.kernel(GEMM, 1000 * at + 500, 1000 * at + 900, launch=(thread, 1000 * at, 1000 * at + 100))
    return builder


def steady(builder: TimelineBuilder, folder: Path) -> list[RangeProposal]:
    path = write_nsys_sqlite(builder.build(), folder / "ranges.sqlite")
    (rank,) = diagnose([measure_capture(path, WindowRequest())]).ranks
    assert rank.window.start_up is not None
    return rank.window.proposals


def test_a_second_pass_is_proposed_by_its_times(tmp_path: Path) -> None:
    """By its name the first one, in start-up, would be part of the window again."""
    names = [("forward pass", 0, 9_900), ("forward pass", 20_000, 21_000), ("backward pass", 21_000, 22_000)]
    (found,) = steady(after_start_up(names, range(20_000, 22_000, 10)), tmp_path)
    assert (found.names, found.count) == (["forward pass", "backward pass"], 1)
    assert found.option == "--window=20000000ns,22000000ns"


def test_the_longest_run_of_steps_that_are_alike(tmp_path: Path) -> None:
    """Warm-up trains, 4 times; then comes evaluation, forward only, 8 times."""
    names, kernels = [], []
    for i in range(4):
        begin = 20_000 + 2_000 * i
        names += [("forward", begin, begin + 1_000), ("backward", begin + 1_000, begin + 1_900)]
        kernels += range(begin, begin + 1_900, 10)
    for i in range(8):
        begin = 28_000 + 1_000 * i
        names.append(("forward", begin, begin + 1_000))
        kernels += range(begin, begin + 1_000, 10)
    builder = after_start_up(names, kernels)
    (found,) = steady(builder, tmp_path)
    # 800 of 1,560 launches.
    assert (found.names, found.count) == (["forward"], 8)
    assert found.launches_frac == pytest.approx(800 / 1_560)
    assert found.option == "--step-range='^forward$' --window=28000000ns,36000000ns"
    # What it proposes is a valid request, and gives these steps.
    path = write_nsys_sqlite(builder.build(), tmp_path / "again.sqlite")
    request = WindowRequest(bounds_ns=(28_000_000, 36_000_000), step_pattern=re.compile("^forward$"))
    (rank,) = diagnose([measure_capture(path, request)]).ranks
    assert (rank.window.kind, rank.window.steps) == ("steps", 8)


def test_the_finding_names_them_before_new_ranges(tmp_path: Path) -> None:
    path = write_nsys_sqlite(
        laid([("pass", 100 * i, 100 * i + 95) for i in range(10)]).build(), tmp_path / "r.sqlite"
    )
    rules = {r.code: r for r in diagnose([measure_capture(path, WindowRequest())]).rules}
    remedy = rules["PD902"].remedy
    assert rules["PD902"].state == "fires"
    assert 0 <= remedy.find("--step-range='^pass$'") < remedy.find("range_push")


@pytest.mark.parametrize("words", ["a range of words", "x" * 300, 'it\'s a "range" (of) [words] $1 `x` \\'])
@pytest.mark.parametrize("count", [1, 2])
def test_an_option_is_whole_on_a_line_and_names_its_range(words: str, count: int, tmp_path: Path) -> None:
    """A name of any length and with any signs: no space at which a report breaks, and it matches."""
    names = [(words, 500 * i, 500 * i + 480) for i in range(count)]
    names += [] if count > 1 else [("after", 490, 980)]
    (found,) = proposed(tmp_path, names)
    option = found.option
    assert len(option) <= 80
    (whole,) = shlex.split(option)
    assert " " not in option
    name, _, given = whole.partition("=")
    pattern = given.removeprefix("range:")
    if given.startswith("range:") or name == "--step-range":
        assert re.search(pattern, words)
    else:
        assert (name, count) == ("--window", 1)
