"""One step far longer than the others is told as that, with what only it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.rules.engine.case import Case
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import US, case_of, evidence_of, result

EVEN = (500, 0)


def laid_out(*ranks: Sequence[tuple[int, int]], named: bool = True) -> list[TimelineBuilder]:
    """Of each rank (us of computing, us of a wait for the next batch before it) by step; all reduce their
    gradients for 100 us once the last has come. named: whether a range says what the host waits for."""
    waits = [[late + busy for busy, late in steps] for steps in ranks]
    longest = [max(at) for at in zip(*waits, strict=True)]
    builders = []
    for number, steps in enumerate(ranks):
        builder, thread, device = one_gpu(pid=1000 + number, rank=number)
        at = 0
        for i, (busy, late) in enumerate(steps):
            end = at + (longest[i] + 100) * US
            began, done = at + late * US, at + (late + busy) * US
            thread.range(f"perfdoc.step {i}", at, end)
            if late and named:
                thread.range("perfdoc.data", at, began)
            device.kernel(GEMM, began, done, launch=(thread, began, began + 1))
            thread.range("all-grads-sync", began + 2, began + 9)
            device.kernel(ALL_REDUCE, done, end, stream=20, launch=(thread, began + 3, began + 4))
            at = end
        builders.append(builder)
    return builders


def slow_once(folder: Path, *slow: tuple[int, int], at: int = 5, steps: int = 8) -> Case:
    """slow: each rank's in that step."""
    return case_of(folder, *laid_out(*([*[EVEN] * at, one, *[EVEN] * (steps - at - 1)] for one in slow)))


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (((1700, 0), (1700, 0)), "1.2 ms more of computing on all 2 ranks"),
        (((500, 0), (1700, 0)), "1.2 ms more of computing on {1}"),
        (((500, 1200), (500, 0)), "1.2 ms more of waiting for the next batch on {0}"),
        (((1700, 0),), "1.2 ms more of computing"),
    ],
)
def test_what_only_that_step_has(tmp_path: Path, slow: Sequence[tuple[int, int]], said: str) -> None:
    # Seven steps of 600 us and one of 1,800: a mean of 750.
    # Where the device waits before a step, that is in the one before.
    case = slow_once(tmp_path, *slow)
    found = result("PD210", case)
    assert (found.state, found.level) == ("fires", "problem")
    step = 4 if "batch" in said else 5
    named = said.format(*case.job.labels)
    assert found.blames == f"perfdoc.step {step} takes 3 times as long as the other 7, {named}"
    assert found.gain is not None
    assert (found.gain.mid_ms, found.gain.high_ms) == (None, pytest.approx(0.15, abs=0.001))
    assert found.gain_frac == pytest.approx(0.2, abs=0.002)


def test_communication_of_unknown_dimension_has_no_name(tmp_path: Path) -> None:
    """An all-reduce of 100 us takes 1,300 in one step."""
    builder, thread, device = one_gpu(rank=0)
    at = 0
    for i in range(8):
        reduced = at + 500 * US
        end = reduced + (1_300 if i == 5 else 100) * US
        thread.range(f"perfdoc.step {i}", at, end)
        device.kernel(GEMM, at, reduced, launch=(thread, at, at + 1))
        device.kernel(ALL_REDUCE, reduced, end, stream=20, launch=(thread, at + 3, at + 4))
        at = end
    found = result("PD210", case_of(tmp_path, builder))
    assert found.blames.endswith("1.2 ms more of communication beside no compute")


def test_a_host_that_is_late_is_looked_for_where_the_next_step_begins(tmp_path: Path) -> None:
    steps = [EVEN, EVEN, EVEN, EVEN, EVEN, (500, 1200), EVEN, EVEN]
    found = result("PD210", case_of(tmp_path, *laid_out(steps, named=False)))
    assert (
        found.blames
        == "perfdoc.step 4 takes 3 times as long as the other 7, 1.2 ms more of waiting for the host"
    )
    assert "at the beginning of perfdoc.step 5" in found.remedy
    assert "beginning" not in result("PD210", slow_once(tmp_path, (1700, 0))).remedy


@pytest.mark.parametrize(
    ("steps", "name", "level"),
    [
        (8, "[pl][profile][Strategy]SingleDeviceStrategy.validation_step", "problem"),
        (4, "evaluate", "problem"),
        (4, "update_weights", "information"),  # of gradients that three steps accumulated
        (4, "", "information"),
    ],
)
def test_the_range_that_only_the_slow_step_has(tmp_path: Path, steps: int, name: str, level: str) -> None:
    """Steps of 1 ms, the third with 4 ms more in a range of its own, and in one that all have."""
    builder, thread, device = one_gpu()
    at = 0
    for i in range(steps):
        calls = 5 if i == 2 else 1
        thread.range(f"perfdoc.step {i}", at, at + calls * 1000 * US)
        thread.range("forward", at, at + calls * 100)
        if name and calls > 1:
            thread.range(name, at + 50, at + 450)
        for call in range(at, at + calls * 100, 100):
            device.kernel(GEMM, at, at + 1000 * US, launch=(thread, call, call + 1))
            at += 1000 * US
    found = result("PD210", case_of(tmp_path, builder))
    assert (found.state, found.level) == ("fires", level)
    assert (f"`{name[-64:]}`" in found.remedy) == bool(name)


@pytest.mark.parametrize("behind", [0, 200])
def test_a_pause_inside_the_slow_step_is_not_looked_for_in_the_next(tmp_path: Path, behind: int) -> None:
    """Steps of 600 us of kernels; in step 4 the host is silent for 1,200 us before its last 200, or, with
    nothing behind that, before the first kernel of step 5."""
    builder, thread, device = one_gpu()
    at = 0
    for i in range(8):
        begin = at
        for part in (600 - behind, behind):
            at += 1200 * US if (i, part) == (4, behind) else 0
            if part:
                device.kernel(GEMM, at, at + part * US, launch=(thread, at, at + 1))
            at += part * US
        thread.range(f"perfdoc.step {i}", begin, at)
    found = result("PD210", case_of(tmp_path, builder))
    assert "1.2 ms more of waiting for the host" in found.reason
    assert ("beginning" in found.remedy) == (behind == 0)


def test_the_bound_is_not_below_what_goes_with_the_slow_step(tmp_path: Path) -> None:
    # The median of these is above the mean of those that are not slow.
    steps = [(560, 0), (600, 0), (598, 0), (1700, 0), (599, 0), (601, 0), (540, 0), (600, 0)]
    others = [busy for busy, _ in steps if busy < 1000]
    found = result("PD210", case_of(tmp_path, *laid_out(steps)))
    assert found.gain is not None
    truth_us = (1700 - sum(others) / len(others)) / len(steps)
    assert (found.gain.high_ms or 0) >= truth_us / 1e3


def test_the_first_step_of_a_capture_is_told_and_leads_nothing(tmp_path: Path) -> None:
    found = result("PD210", slow_once(tmp_path, (1700, 0), at=0))
    assert (found.state, found.level, found.blames) == ("fires", "information", "")


def test_two_slow_steps_are_counted(tmp_path: Path) -> None:
    steps = [EVEN, EVEN, (1700, 0), EVEN, EVEN, (1100, 0), EVEN, EVEN, EVEN, EVEN]
    found = result("PD210", case_of(tmp_path, *laid_out(steps)))
    assert found.blames.startswith("perfdoc.step 2 and 1 other step take up to 3 times as long")
    assert found.gain is not None
    assert found.gain.high_ms == pytest.approx((1.2 + 0.6) / 10, abs=0.001)


@pytest.mark.parametrize(("late", "leads"), [(0, False), (1200, True)])
def test_slow_steps_that_come_regularly_are_told_so(tmp_path: Path, late: int, leads: bool) -> None:
    """One in five: an optimizer behind five micro-batches, which is by design, or a host that logs."""
    slow = (500, late) if late else (1700, 0)
    found = result("PD210", case_of(tmp_path, *laid_out([*[EVEN] * 4, slow] * 4, named=False)))
    assert "one step in 5, such as " in found.reason
    assert (found.level == "problem", found.gain is not None) == (leads, leads)
    assert found.blames.startswith("One step in 5") == leads
    assert ("accumulated" in found.remedy) != leads
    # Not where they come as they like.
    steps = [EVEN, EVEN, slow, *[EVEN] * 6, slow, *[EVEN] * 3, slow, *[EVEN] * 6]
    assert "step in" not in result("PD210", case_of(tmp_path / "x", *laid_out(steps, named=False))).reason


def test_an_optimizer_runs_on_all_ranks(tmp_path: Path) -> None:
    """Steps that are slow as regularly as an optimizer's, and not on every rank, are not by design."""
    case = case_of(tmp_path, *laid_out([*[EVEN] * 4, (1700, 0)] * 4, named=False))
    assert result("PD210", case).level == "information"
    times = case.job.step_times
    some = replace(times, outliers=[replace(o, grew_on=0) for o in times.outliers])
    found = result("PD210", replace(case, job=replace(case.job, step_times=some)))
    assert (found.level, found.gain is not None) == ("problem", True)


def test_what_a_third_of_the_steps_have_is_no_exception(tmp_path: Path) -> None:
    found = result("PD210", case_of(tmp_path, *laid_out([EVEN, (1700, 0), EVEN] * 4)))
    assert (found.state, "too many" in found.reason) == ("passes", True)


def test_a_quarter_of_the_steps_is_told_where_one_host_makes_them_long(tmp_path: Path) -> None:
    """Two of eight, of 1,800 us in place of 600, for which one rank is late; the mean is 900."""
    late = [(500, 1200) if i in (2, 5) else EVEN for i in range(8)]
    case = case_of(tmp_path, *laid_out(late, [EVEN] * 8, named=False))
    found = result("PD210", case)
    assert "and 1 other step take up to 3 times as long as " in found.blames
    assert found.blames.endswith(f"1.2 ms more of waiting for the host on {case.job.labels[0]}")
    assert found.gain is not None
    assert found.gain.high_ms == pytest.approx(0.3, abs=0.001)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("steps", "at"), [(8, (3, 7)), (8, (2, 5)), (7, (2, 5)), (5, (1, 3)), (8, (1, 4))])
def test_what_all_compute_in_a_quarter_of_the_steps_blames_none(
    steps: int, at: Sequence[int], ranks: int, tmp_path: Path
) -> None:
    """An optimizer behind three or four micro-batches, or long batches: no cause, however few are seen."""
    each = [(1200, 0) if i in at else EVEN for i in range(steps)]
    found = result("PD210", case_of(tmp_path, *laid_out(*[each] * ranks)))
    assert (found.state, found.blames, found.gain) == ("passes", "", None)


@pytest.mark.parametrize("reduces", [False, True])
def test_two_updates_among_ten_micro_batches_are_by_design(reduces: bool, tmp_path: Path) -> None:
    """Ten of 500 us; behind the fifth and the tenth 400 us of a reduction or of an optimizer."""
    builders = [TimelineBuilder() for _ in range(2)]
    for number, builder in enumerate(builders):
        process = builder.process(pid=1000 + number, rank=number)
        thread, device = process.thread(), process.device()
        at = 0
        for i in range(10):
            end = at + (900 if i in (4, 9) else 500) * US
            device.kernel(GEMM, at, at + 500 * US, launch=(thread, at, at + 1))
            if i in (4, 9):
                thread.range("all-grads-sync", at + 2, at + 9)
                name, stream = (ALL_REDUCE, 20) if reduces else (GEMM, 7)
                device.kernel(name, at + 500 * US, end, stream=stream, launch=(thread, at + 3, at + 4))
            thread.range(f"perfdoc.step {i}", at, end)
            at = end
    found = result("PD210", case_of(tmp_path, *builders))
    assert (found.state, found.level, found.blames, found.gain) == ("fires", "information", "", None)
    assert found.reason.startswith("one step in 5, ")


@pytest.mark.parametrize("late", [False, True])
def test_two_first_steps_lead_no_more_than_one(late: bool, tmp_path: Path) -> None:
    slow = [(500, us) if late else (us + 500, 0) for us in (1700, 1200)]
    # Where the device waits before a step, that is in the one before.
    case = case_of(tmp_path, *laid_out(*[[*[EVEN] * late, *slow, *[EVEN] * 6]] * 2, named=False))
    found = result("PD210", case)
    assert (found.state, found.level, found.blames) == ("fires", "information", "")
    assert found.reason.startswith("perfdoc.step 0 and 1 other step take")


def test_a_first_step_is_no_part_of_what_a_later_one_costs(tmp_path: Path) -> None:
    """Of ten steps of 600 us the first takes 2,600 and the fourth 1,600, which is 100 in the mean of 900."""
    steps = [(2500, 0), EVEN, EVEN, (1500, 0), *[EVEN] * 6]
    found = result("PD210", case_of(tmp_path, *laid_out(steps, steps)))
    assert found.blames.startswith("perfdoc.step 3 takes 2.67 times as long as ")
    assert found.gain is not None
    assert found.gain.high_ms == pytest.approx(0.1, abs=0.001)
    # A first step that comes back as regularly as others is no start-up.
    steps = [(1200, 0) if i in (0, 5, 10, 15) else EVEN for i in range(20)]
    assert result("PD210", case_of(tmp_path / "x", *laid_out(steps, steps))).reason.startswith(
        "one step in 5"
    )


def test_long_batches_of_a_quarter_of_the_steps_are_no_exception(tmp_path: Path) -> None:
    """On one rank and then on the other."""
    ranks = [[(1700, 0) if i == at else EVEN for i in range(8)] for at in (2, 5)]
    assert "too many" in result("PD210", case_of(tmp_path, *laid_out(*ranks))).reason


@pytest.mark.parametrize(
    ("slow", "steps", "found"),
    [((500, 1200), 4, "problem"), ((1700, 0), 4, "information"), ((500, 500), 4, ""), ((500, 1200), 2, "")],
)
def test_of_few_steps_one_that_takes_twice_as_long_is_told(
    slow: tuple[int, int], steps: int, found: str, tmp_path: Path
) -> None:
    """600 us, and 1,800 or 1,100: a late batch is a fault, computing may be an update."""
    one = result("PD210", slow_once(tmp_path, slow, at=steps - 2, steps=steps))
    assert (one.level if one.state == "fires" else "") == found
    assert (one.gain is not None) == (found == "problem")


def test_steps_that_differ_as_they_do_and_small_excess_are_none(tmp_path: Path) -> None:
    scattered = [(500 + 40 * (i * 7 % 5), 0) for i in range(10)]
    assert result("PD210", case_of(tmp_path, *laid_out(scattered))).state == "passes"
    # 100 us over 600 once in 8 steps are 2 % of the time.
    assert result("PD210", slow_once(tmp_path, (600, 0))).state == "passes"


def test_steps_of_two_lengths_blame_none(tmp_path: Path) -> None:
    """Six of 16 take about 110 us more: the longest costs a sixteenth of what it is above the mean of the
    others, 655 - 557 = 98 us, and that is 1.1 % of the mean step of 563 us."""
    busy = (496, 606, 488, 509, 497, 499, 616, 512, 605, 508, 501, 635, 628, 488, 497, 605)
    case = case_of(tmp_path, *laid_out([(us - 80, 0) for us in busy]))
    found = result("PD210", case)
    assert (found.state, evidence_of(found)) == ("passes", ["1 of 16"])


def test_a_slow_step_among_scattered_ones_is_compared_with_the_median(tmp_path: Path) -> None:
    # Without the one of 3,100 us the others are 600 to 760, 682 in the mean; with it 924.
    steps = [500, 660, 540, 580, 620, 3000, 580, 560, 600, 600]
    found = result("PD210", case_of(tmp_path, *laid_out([(us, 0) for us in steps])))
    assert "times as long as the median step, " in found.blames
    assert found.evidence[-1].value == "682 µs, not 924 µs"


@pytest.mark.parametrize(
    ("slow", "since"),
    [
        ((5, 6, 7, 8), "From perfdoc.step 5 on steps compute 1.5 times as long"),
        ((7, 8), ""),  # two steps are no lasting change
        ((3, 5, 7), ""),  # nor are some among others
    ],
)
def test_steps_that_compute_longer_from_one_on(slow: Sequence[int], since: str, tmp_path: Path) -> None:
    """Nine steps of 600 us, those of 900: with four of them the mean is 733, 133 above the first ones."""
    steps = [(800, 0) if i in slow else EVEN for i in range(9)]
    found = result("PD210", case_of(tmp_path, *laid_out(steps, steps)))
    assert found.blames.startswith("From") is bool(since)
    if since:
        assert found.blames == since
        assert found.gain is not None
        assert found.gain.high_ms == pytest.approx(0.133, abs=0.001)


def test_a_clock_that_falls_twice_is_told_from_where_it_falls_most(tmp_path: Path) -> None:
    """Steps of 600, 800 and 1,400 us, four each: from the second fall on 1,400 to 700 before."""
    steps = [EVEN if i < 4 else (700, 0) if i < 8 else (1300, 0) for i in range(12)]
    found = result("PD210", case_of(tmp_path, *laid_out(steps, steps)))
    assert found.blames == "From perfdoc.step 8 on steps compute 2 times as long"


@pytest.mark.parametrize(("scatter_us", "told"), [(0, True), (4, True), (200, False)])
def test_a_clock_that_falls_by_and_by_is_told_from_the_last_steps(
    scatter_us: int, told: bool, tmp_path: Path
) -> None:
    """Twelve steps of 600, 640, ... 1,040 us: the last three take 1,000, the first three 640 us. Not where
    each second one is longer than those behind it."""
    steps = [(500 + 40 * i + (scatter_us if i % 2 else 0), 0) for i in range(12)]
    found = result("PD210", case_of(tmp_path, *laid_out(steps, steps)))
    assert found.blames.startswith("From perfdoc.step 9 on steps compute 1.5") is told


def test_two_lengths_in_turn_are_no_clock_that_falls(tmp_path: Path) -> None:
    """Three steps of 600 us, three of 800, and both again: the last three are as long as those before."""
    steps = [(500 + 200 * (i // 3 % 2), 0) for i in range(12)]
    assert "compute" not in result("PD210", case_of(tmp_path, *laid_out(steps, steps))).blames


def test_steps_in_which_others_are_waited_for_do_not_compute_longer(tmp_path: Path) -> None:
    """One of two ranks computes longer from step 5 on; the other waits for it."""
    late = [(800, 0) if i > 4 else EVEN for i in range(9)]
    found = result("PD210", case_of(tmp_path, *laid_out(late, [EVEN] * 9)))
    assert not found.blames


def test_later_steps_of_more_kernels_are_no_slow_gpu(tmp_path: Path) -> None:
    """Six steps of four kernels of 500 us, then six of six: a batch that grows."""
    builder, thread, device = one_gpu()
    at = 0
    for step in range(12):
        begin = at
        for k in range(4 if step < 6 else 6):
            call = begin + k * 20 * US
            device.kernel(GEMM, at + 10 * US, at + 500 * US, launch=(thread, call, call + 5 * US))
            at += 500 * US
        thread.range(f"step {step}", begin, at - 1)
    found = result("PD210", case_of(tmp_path, builder))
    assert (found.level, found.blames, found.gain) == ("information", "", None)
    assert found.reason.endswith("in 1.5 times as many kernels")
    assert "clock" not in found.remedy
