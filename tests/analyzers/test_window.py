from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.results.ranks import Window
from perfdoc.traces import Trace
from perfdoc.traces.load import read_trace
from tests.analyzers.tiny import GEMM, activity_of, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu

AUTO = WindowRequest()


def window_of(trace: Trace, activity: Activity, request: WindowRequest) -> Window:
    return find_window(trace, activity, request, find_known_ranges(trace))[0]


def steps_of(window: Window) -> list[tuple[int, int]]:
    return [(s.start_ns, s.end_ns) for s in window.step_list]


def stepped(folder: Path, names: tuple[str, ...]) -> Trace:
    """Steps at [0,100), [100,200), … on the host; each launches two kernels that run 1000 ns later.

    The device runs behind: the first kernel of step i is at 1000 + 100 i, the second ends 60 later. A
    warm-up kernel before and a clean-up kernel after belong to no step.
    """
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 900, 950, launch=(thread, 0, 1))
    for i, name in enumerate(names):
        begin = 10 + 100 * i
        thread.range(name, begin, begin + 100)
        device.kernel(GEMM, 1000 + 100 * i, 1020 + 100 * i, launch=(thread, begin + 5, begin + 6))
        device.kernel(GEMM, 1030 + 100 * i, 1060 + 100 * i, launch=(thread, begin + 50, begin + 60))
    end = 10 + 100 * len(names)
    device.kernel(GEMM, 3000, 3100, launch=(thread, end + 5, end + 6))
    return trace_of(builder, folder)


@pytest.mark.parametrize(
    "names",
    [
        ("perfdoc.step 0", "perfdoc.step 1"),
        ("training_step_7", "training_step_8"),
        ("ProfilerStep#3", "ProfilerStep#4"),
        ("step 1", "step 2"),
        ("Iteration: 1", "Iteration: 2"),
        ("iter_5", "iter_6"),
        ("global_step=5", "global_step=6"),
        ("train_step", "train_step"),
        ("Trainer.train_step", "Trainer.train_step"),
        ("run_training_step", "run_training_step"),
        ("[step] 0", "[step] 1"),
        ("## step 0 ##", "## step 1 ##"),
        ("epoch 0, step 3", "epoch 0, step 4"),
        ("epoch_0_iter_3", "epoch_0_iter_4"),
        ("train/step=3", "train/step=4"),
        ("step_num: 3", "step_num: 4"),
        ("Iteration 3/100", "Iteration 4/100"),
        ("[pl][profile]run_training_batch", "[pl][profile]run_training_batch"),
        ("TSL:train#step_num=3,_r=1#", "TSL:train#step_num=4,_r=1#"),
        ("TSL:XlaModule:#hlo_module=jit_train_step,program_id=9#",) * 2,
        ("XlaModule:#prefix=a,hlo_module=pmap__step,program_id=9#",) * 2,
        ("TSL:PjitFunction(train_step)", "TSL:PjitFunction(train_step)"),
        ("execute_context_1(8)_generation_0(0)", "execute_context_0(0)_generation_1(1)"),
        ("execute_16_context_0(sq0sk0)_generation_16(sq16)", "execute_16_context_1(sq8)_generation_15(sq15)"),
        ("step[DECODE bs=4]", "step[EXTEND bs=1 toks=80]"),
        (
            "step[DECODE bs=4]",
            "step[MIXED bs=66 c=2 g=64 c_sq=14721 c_sqsq=108745533 c_sqsk=108745533 c_sk=14721 g_sq=128 g]",
        ),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "decode[bs=117/128 tok=117 d=117]"),
        ("execute_diffusion_1(256x256)", "execute_diffusion_1(256x256)"),
    ],
)
def test_steps_tile_the_device_time(tmp_path: Path, names: tuple[str, ...]) -> None:
    trace = stepped(tmp_path, names)
    window = window_of(trace, activity_of(trace), AUTO)
    assert window.kind == "steps"
    # Step 0 from its first kernel to the first of step 1, gap included; the last one to the end of the last
    # kernel launched inside its range: neither the kernel before nor the one after.
    assert steps_of(window) == [(1000, 1100), (1100, 1160)]
    assert (window.start_ns, window.end_ns) == (1000, 1160)


def test_work_without_a_call_in_the_capture_belongs_to_the_last_step_that_it_runs_in(tmp_path: Path) -> None:
    """Two GEMMs of the step's calls end at 300; an all-reduce from 310 to 380 lost its call. What begins once
    the range has ended, at 600, may be of a later step."""
    builder, thread, device = one_gpu()
    thread.range("ProfilerStep#3", 10, 600)
    device.kernel(GEMM, 100, 200, launch=(thread, 20, 30))
    device.kernel(GEMM, 200, 300, launch=(thread, 30, 40))
    device.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 310, 380)
    device.kernel(GEMM, 600, 700)
    trace = trace_of(builder, tmp_path)
    assert steps_of(window_of(trace, activity_of(trace), AUTO)) == [(100, 380)]


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (("ProfilerStep#3", "x", "ProfilerStep#5"), [1000, 1100, 1200]),
        (("step 1", "step 2", "x", "step 4"), [1000, 1100, 1200, 1300]),
        (("ProfilerStep#3", "x", "ProfilerStep#4"), [1000, 1200]),  # work between steps, as of an evaluation
        (("ProfilerStep#3", "x", "ProfilerStep#9"), [1000, 1200]),
        (("ProfilerStep#3", "x", "x", "x", "ProfilerStep#5"), [1000, 1400]),
    ],
)
def test_a_step_whose_range_is_lost_does_not_lengthen_its_neighbour(
    names: tuple[str, ...], starts: list[int], tmp_path: Path
) -> None:
    trace = stepped(tmp_path, names)
    window = window_of(trace, activity_of(trace), AUTO)
    assert [start for start, _ in steps_of(window)] == starts
    restored = len(starts) - sum(name != "x" for name in names)
    assert ("1 lost one put between its neighbours" in window.reason) == bool(restored)
    assert "left out" not in window.reason


def test_steps_that_are_numbered_otherwise_have_none_lost_between_them(tmp_path: Path) -> None:
    # Every second name is another process's, and time for a step is there each time.
    trace = stepped(tmp_path, ("step 2", "x", "step 4", "x", "step 6"))
    window = window_of(trace, activity_of(trace), AUTO)
    assert [step.name for step in window.step_list] == ["step 2", "step 4", "step 6"]


@pytest.mark.parametrize(
    ("numbers", "recorded", "kept"),
    [
        ((2, 3, 4, 12, 13), "", 3),
        ((2, 3, 4, 12, 13), "calls", 5),  # recorded, not named
        ((2, 3, 4, 12, 13), "kernels", 5),
        ((2, 3, 4, 12, 13), "waits", 5),
        ((2, 3, 4, 5, 6), "", 5),  # a pause
        ((0, 2, 4, 6, 8), "", 5),  # a pause, and every second step is another process's
        ((512, 1024, 1536, 2048, 2560), "", 5),  # numbered by samples
        ((512, 1024, 1536, 5632, 6144), "", 3),
        ((256, 512, 768, 1280, 1792), "", 5),  # the batch grows
        ((2, 3, 4, 30, 31), "", 5),  # no time for 25 steps
    ],
)
def test_what_was_not_recorded_is_no_part_of_a_step(
    tmp_path: Path, numbers: tuple[int, ...], recorded: str, kept: int
) -> None:
    """Steps of 100 ns, then 1,000 of which nothing is known before the last two."""
    builder, thread, device = one_gpu()
    for i, number in enumerate(numbers):
        begin = 100 * i + (1_000 if i > 2 else 0)
        thread.range(f"step {number}", begin, begin + 100)
        device.kernel(GEMM, begin + 20, begin + 90, launch=(thread, begin + 5, begin + 10))
    for at in range(300, 1_300, 100):
        if recorded == "calls":
            thread.api("cudaEventQuery", at, at + 1)
        elif recorded == "kernels":
            device.kernel(GEMM, at + 20, at + 90)
        elif recorded == "waits":
            thread.os_call("poll", at, at + 90)
    trace = trace_of(builder, tmp_path)
    window, ranges = find_window(trace, activity_of(trace), AUTO, find_known_ranges(trace))
    assert [s.name for s in window.step_list] == [f"step {n}" for n in numbers[:kept]]
    assert ("2 steps left out, 3 analysed" in str(ranges.lacking)) == (kept == 3)


@pytest.mark.parametrize("name", ["step", "fused_kernel step"])
def test_each_stretch_that_was_not_recorded_is_told(tmp_path: Path, name: str) -> None:
    """Three times two steps of 100 ns, whose numbers and begins are 10 steps apart: the last two are kept."""
    builder, thread, device = one_gpu()
    for number in (2, 3, 12, 13, 22, 23):
        begin = 100 * number
        thread.range(f"{name} {number}", begin, begin + 100)
        device.kernel(GEMM, begin + 20, begin + 90, launch=(thread, begin + 5, begin + 10))
    trace = trace_of(builder, tmp_path)
    request = WindowRequest(step_pattern=re.compile(name))
    window, ranges = find_window(trace, activity_of(trace), request, find_known_ranges(trace))
    assert [s.name for s in window.step_list] == [f"{name} 22", f"{name} 23"]
    ((said, remedy),) = ranges.lacking
    assert f"from {name} 3 to {name} 12 and from {name} 13 to {name} 22" in said
    assert "--window" in remedy


@pytest.mark.parametrize(
    "name",
    [
        *("Warm-up Step 1", "Optimizer.step#AdamW.step", "step", "steps 3", "stepping 3"),
        *(
            "optimizer step 3",
            "XlaModule:#hlo_module=jit__mean,program_id=9#",
            "eval_step_3",
            "validation_step",
            "micro_step 3",
            "epoch 3",
        ),
    ],
)
def test_names_that_only_contain_a_step_are_none(tmp_path: Path, name: str) -> None:
    trace = stepped(tmp_path, (name, name))
    window = window_of(trace, activity_of(trace), AUTO)
    assert (window.kind, window.start_ns, window.end_ns) == ("capture", 900, 3100)
    assert "no range" in window.reason


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("perfdoc.step 0", "step {}"),
        ("iteration 7", "decode[bs={} tok=9]"),
        ("iteration 7", "execute_context_0(0)_generation_{}(9)"),
        ("train_step", "step[DECODE bs={} toks=9]"),
        ("iteration 7", "[Executor] _forward_step {}: 0 ctx reqs, 9 gen reqs"),
    ],
)
def test_a_known_form_wins_over_a_common_one(outer: str, inner: str, tmp_path: Path) -> None:
    """And that over an engine's: training decodes inside of its iterations."""
    builder, thread, device = one_gpu()
    thread.range(outer, 0, 100)
    thread.range(inner.format(0), 0, 50)
    thread.range(inner.format(1), 50, 80)
    device.kernel(GEMM, 200, 210, launch=(thread, 10, 11))
    device.kernel(GEMM, 220, 230, launch=(thread, 60, 61))
    trace = trace_of(builder, tmp_path)
    assert steps_of(window_of(trace, activity_of(trace), AUTO)) == [(200, 230)]


def test_nested_ranges_of_one_form_count_once(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.range("step 1", 0, 100)
    thread.range("iteration 0", 10, 20)
    thread.range("iteration 1", 30, 40)
    thread.range("iteration 2", 90, 100)  # ends with the step
    device.kernel(GEMM, 200, 210, launch=(thread, 15, 16))
    device.kernel(GEMM, 220, 230, launch=(thread, 35, 36))
    device.kernel(GEMM, 240, 250, launch=(thread, 95, 96))
    trace = trace_of(builder, tmp_path)
    assert steps_of(window_of(trace, activity_of(trace), AUTO)) == [(200, 250)]


def test_each_process_has_its_own_steps(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for pid, offset in ((100, 0), (200, 5000)):
        process = builder.process(pid=pid)
        thread, device = process.thread(), process.device()
        thread.range("step 1", offset, offset + 100)
        device.kernel(GEMM, offset + 50, offset + 80, launch=(thread, offset + 10, offset + 11))
    trace = trace_of(builder, tmp_path)
    found = {
        trace.devices[i].process: steps_of(window_of(trace, activity_of(trace, i), AUTO))
        for i in range(len(trace.devices))
    }
    assert found == {100: [(50, 80)], 200: [(5050, 5080)]}


def test_step_ranges_without_launches_fall_back_to_the_capture(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    process.thread().range("step 1", 0, 100)
    process.device().kernel(GEMM, 50, 80)  # no API row: when it was launched is unknown
    trace = trace_of(builder, tmp_path)
    window = window_of(trace, activity_of(trace), AUTO)
    assert (window.kind, window.start_ns, window.end_ns) == ("capture", 50, 80)
    assert "launch" in window.reason


@pytest.mark.parametrize(("behind", "kind"), [(0, "steps"), (40, "steps"), (70, "capture")])
def test_steps_without_launches_go_by_the_hosts_clock_where_the_device_keeps_up(
    behind: int, kind: str, tmp_path: Path
) -> None:
    """Three steps of 100; what runs is `behind` after the host, up to half a step of which is believed."""
    builder, thread, device = one_gpu()
    for i in range(3):
        thread.range(f"step {i}", 100 * i, 100 * i + 100)
        device.kernel(GEMM, 100 * i + 5 + behind, 100 * i + 95 + behind)
    trace = trace_of(builder, tmp_path)
    window = window_of(trace, activity_of(trace), AUTO)
    assert window.kind == kind
    if kind == "steps":
        assert steps_of(window) == [(0, 100), (100, 200), (200, 300)]
        assert "host's clock" in window.reason


def test_what_the_user_asks_for(tmp_path: Path) -> None:
    trace = stepped(tmp_path, ("my epoch", "my epoch"))
    activity = activity_of(trace)

    by_bounds = window_of(trace, activity, WindowRequest(bounds_ns=(905, 907)))
    assert (by_bounds.kind, by_bounds.start_ns, by_bounds.end_ns) == ("user", 905, 907)

    named = window_of(trace, activity, WindowRequest(step_pattern=re.compile("epoch")))
    assert steps_of(named) == [(1000, 1100), (1100, 1160)]

    # Host times of the ranges, not the device's: from the first one's start to the last one's end.
    clipped = window_of(trace, activity, WindowRequest(range_pattern=re.compile("^my ")))
    assert (clipped.kind, clipped.start_ns, clipped.end_ns) == ("user", 10, 210)

    whole = window_of(trace, activity, WindowRequest(whole_capture=True))
    assert (whole.kind, whole.start_ns, whole.end_ns) == ("capture", 900, 3100)

    with pytest.raises(ValueError, match="matches 'nothing'"):
        window_of(trace, activity, WindowRequest(step_pattern=re.compile("nothing")))


def laid(
    folder: Path, ranges: list[tuple[int, str, int, int | None]], kernels: list[tuple[int, int, int]]
) -> Window:
    """Ranges as (thread, name, start, end) and kernels as (thread, launch, start), each 10 ns long."""
    builder = TimelineBuilder()
    process = builder.process()
    threads = [process.thread(tid=1000 + i) for i in range(3)]
    device = process.device()
    for thread, name, start, end in ranges:
        threads[thread].range(name, start, end, kind="start_end")
    for thread, launch, start in kernels:
        device.kernel(GEMM, start, start + 10, launch=(threads[thread], launch, launch + 1))
    trace = trace_of(builder, folder)
    return window_of(trace, activity_of(trace), AUTO)


def test_ranges_that_cross_are_steps_all_the_same(tmp_path: Path) -> None:
    ranges = [(0, f"step {i}", 100 * i, 100 * i + 130) for i in range(4)]
    window = laid(tmp_path, ranges, [(0, 100 * i + 50, 1000 + 100 * i) for i in range(4)])
    assert [s.start_ns for s in window.step_list] == [1000, 1100, 1200, 1300]


def test_a_range_that_never_closes_hides_no_other(tmp_path: Path) -> None:
    ranges: list[tuple[int, str, int, int | None]] = [
        (0, "step 0", 0, None),
        (0, "step 1", 100, 200),
        (0, "step 2", 200, 300),
    ]
    window = laid(tmp_path, ranges, [(0, 100 * i + 50, 1000 + 100 * i) for i in range(3)])
    assert steps_of(window) == [(1000, 1100), (1100, 1200), (1200, 1210)]


def test_steps_may_move_between_launching_threads(tmp_path: Path) -> None:
    ranges = [(i % 2, f"step {i}", 100 * i, 100 * i + 90) for i in range(4)]
    window = laid(tmp_path, ranges, [(i % 2, 100 * i + 50, 1000 + 100 * i) for i in range(4)])
    assert [s.name for s in window.step_list] == ["step 0", "step 1", "step 2", "step 3"]


def test_a_thread_that_launches_nothing_does_not_outvote(tmp_path: Path) -> None:
    helper = [(1, f"iteration {i}", 10 * i, 10 * i + 9) for i in range(20)]
    window = laid(
        tmp_path, [*helper, (0, "step 0", 0, 90), (0, "step 1", 100, 190)], [(0, 50, 1000), (0, 150, 1100)]
    )
    assert [s.name for s in window.step_list] == ["step 0", "step 1"]


def test_a_last_step_that_launched_nothing_stretches_no_other(tmp_path: Path) -> None:
    # Step 2 is empty; an evaluation kernel runs long after it.
    ranges = [(0, f"step {i}", 100 * i, 100 * i + 90) for i in range(3)]
    window = laid(tmp_path, ranges, [(0, 50, 1000), (0, 150, 1100), (0, 400, 1_000_000)])
    assert steps_of(window) == [(1000, 1100), (1100, 1110)]
    assert "1 of 3 left out" in window.reason


def test_work_of_a_later_step_that_ran_earlier_starts_this_one(tmp_path: Path) -> None:
    # Step 1's copy stream runs at 1050, before the first kernel of step 0 at 1080.
    ranges = [(0, "step 0", 0, 90), (0, "step 1", 100, 190)]
    window = laid(tmp_path, ranges, [(0, 50, 1080), (0, 150, 1050)])
    assert window.start_ns == 1050


@pytest.mark.parametrize("over_ns", [0, 800])
def test_what_a_host_far_ahead_copies_on_another_stream_begins_no_step(over_ns: int, tmp_path: Path) -> None:
    """The host launches 3 steps within 300 us, each a copy of its batch on stream 9, which runs at once, and
    a kernel of 1 ms on stream 7, which may begin before the one before it has ended (programmatic dependent
    launch): steps of 1 ms, not of 100 us and a last one of 2.8 ms."""
    builder, thread, device = one_gpu()
    for i in range(3):
        at = 100_000 * i
        thread.range(f"step {i}", at, at + 90_000)
        device.copy("host_to_device", 64, at + 3_000, at + 5_000, stream=9, launch=(thread, at, at + 1))
        begin = 5_000 + 1_000_000 * i
        device.kernel(GEMM, begin, begin + 1_000_000 + over_ns, stream=7, launch=(thread, at + 10, at + 20))
    trace = trace_of(builder, tmp_path)
    window = window_of(trace, activity_of(trace), AUTO)
    assert steps_of(window) == [(3_000, 1_005_000), (1_005_000, 2_005_000), (2_005_000, 3_005_000 + over_ns)]


def test_marks_are_no_steps(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    thread.mark("step 1", 10)
    device.kernel(GEMM, 50, 80, launch=(thread, 20, 21))
    trace = trace_of(builder, tmp_path)
    assert window_of(trace, activity_of(trace), AUTO).kind == "capture"


def test_steps_that_begin_inside_a_window(tmp_path: Path) -> None:
    """Of four steps at 10, 110, 210 and 310 two begin in [100, 300); the device runs them 1000 later."""
    trace = stepped(tmp_path, ("pass", "pass", "pass", "pass"))
    pattern = re.compile("^pass$")
    request = WindowRequest(bounds_ns=(100, 300), step_pattern=pattern)
    window = window_of(trace, activity_of(trace), request)
    assert (window.kind, steps_of(window)) == ("steps", [(1100, 1200), (1200, 1260)])
    with pytest.raises(ValueError, match="inside the window"):
        window_of(trace, activity_of(trace), WindowRequest(bounds_ns=(1, 5), step_pattern=pattern))


def trained(
    folder: Path,
    launches: tuple[int, ...],
    optimizers: int = 1,
    name: str = "Optimizer.step#SGD.step",
    own: tuple[int, ...] = (1,),
) -> Trace:
    """Iterations of 1000 ns on the host that launch so many kernels, of 10 ns each and 1000 ns later, before
    the optimizers that follow one another at 800. own: kernels of each one's step, again and again."""
    builder, thread, device = one_gpu()
    for i, count in enumerate(launches):
        begin = 1000 * i
        for k in range(count):
            at = begin + 20 * k
            device.kernel(GEMM, at + 1000, at + 1010, launch=(thread, at, at + 5))
        for k in range(optimizers):
            at = begin + 800 + 50 * k
            thread.range(name, at, at + 40)
            for call in range(at + 10, at + 10 + 6 * own[i % len(own)], 6):
                device.kernel("adam", call + 990, call + 995, launch=(thread, call, call + 5))
    return trace_of(builder, folder)


@pytest.mark.parametrize("optimizers", [1, 2])
def test_the_optimizer_ends_a_step_where_no_range_names_one(tmp_path: Path, optimizers: int) -> None:
    trace = trained(tmp_path, (20, 20, 20, 20), optimizers)
    window = window_of(trace, activity_of(trace), AUTO)
    last = 4800 + 50 * (optimizers - 1) + 5
    assert steps_of(window) == [(1000, 2000), (2000, 3000), (3000, 4000), (4000, last)]
    assert [s.name for s in window.step_list][::3] == ["iteration 1 of 4", "iteration 4 of 4"]
    assert window.reason == "step ranges: each ends with Optimizer.step"


@pytest.mark.parametrize("launches", [(20, 20), (20, 8, 8, 20, 8, 20), (20, 8, 20, 8), (20, 20, 5, 9)])
def test_an_optimizer_that_bounds_no_equal_iterations_ends_no_step(
    tmp_path: Path, launches: tuple[int, ...]
) -> None:
    trace = trained(tmp_path, launches)
    assert window_of(trace, activity_of(trace), AUTO).kind == "capture"


@pytest.mark.parametrize(
    ("launches", "own", "steps"),
    [
        ((20, 8) * 3, (1,), [(1000, 3000), (3000, 5000), (5000, 6805)]),  # as in DCGAN
        ((20, 20) * 3, (1, 3), None),
        ((8, 8, 20) * 3, (1, 1, 3), [(1000, 4000), (4000, 7000), (7000, 9817)]),  # two updates of the critic
        ((8, 8, 8, 8, 8, 20) * 3, (1, 1, 1, 1, 1, 3), [(1000, 7000), (7000, 13000), (13000, 18817)]),
        ((20,) * 9, (1, 1, 3), None),  # Lookahead: an optimizer that does more in every third step
        ((20, 20, 20, 20, 20, 30) * 3, (1,), None),  # an evaluation in every sixth
    ],
)
def test_optimizers_that_take_turns_end_an_iteration_together(
    tmp_path: Path, launches: tuple[int, ...], own: tuple[int, ...], steps: list[tuple[int, int]] | None
) -> None:
    """Each turn is 1000 ns; the last step ends with the last kernel of its update, at 800 and 6 a kernel."""
    trace = trained(tmp_path, launches, own=own)
    found = window_of(trace, activity_of(trace), AUTO)
    assert found.steps == len(steps or launches)
    assert steps is None or steps_of(found) == steps


def test_deepspeeds_engine_ends_an_iteration_where_it_updates(tmp_path: Path) -> None:
    """Of four micro-batches the last one's step launches; with ZeRO's own ranges inside these count."""
    trace = trained(tmp_path, (20,) * 12, name="DeepSpeedEngine.step", own=(0, 0, 0, 1))
    window = window_of(trace, activity_of(trace), AUTO)
    assert steps_of(window) == [(1000, 5000), (5000, 9000), (9000, 12805)]


def test_thirty_iterations_of_a_real_job(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "strangers" / "resnet_rtx2080ti_loader_workers.json.gz")
    assert window_of(trace, activity_of(trace), AUTO).steps == 30


@pytest.mark.parametrize(("closed", "steps"), [([True] * 4, 4), ([True] * 3 + [False], 3), ([False] * 4, 4)])
def test_a_step_that_the_capture_ends_in_is_none(closed: list[bool], steps: int, tmp_path: Path) -> None:
    """Four steps of 100 ns, the last of them cut after 40. Where no range closes, none shows an end."""
    builder, thread, device = one_gpu()
    for i, whole in enumerate(closed):
        at = 1_000 * i
        thread.range(f"step {i}", at, at + 900 if whole else None)
        device.kernel(GEMM, at + 10, at + (40 if i == 3 else 900), launch=(thread, at, at + 1))
    trace = trace_of(builder, tmp_path)
    window, ranges = find_window(trace, activity_of(trace), AUTO, find_known_ranges(trace))
    assert (window.steps, len(ranges.lacking)) == (steps, 4 - steps)


@pytest.mark.parametrize(("last_ns", "steps"), [(950, 3), (60_000, 4)])
def test_a_last_step_longer_than_any_is_no_piece_of_one(last_ns: int, steps: int, tmp_path: Path) -> None:
    """Steps of 1,000 ns; the last range never closes, and its work ends after 950, or after a hang."""
    builder, thread, device = one_gpu()
    for at in (0, 1_000, 2_000, 3_000):
        thread.range(f"step {at // 1_000}", at, at + 900 if at < 3_000 else None)
        device.kernel(GEMM, at + 10, at + (900 if at < 3_000 else 10 + last_ns), launch=(thread, at, at + 1))
    trace = trace_of(builder, tmp_path)
    window, ranges = find_window(trace, activity_of(trace), AUTO, find_known_ranges(trace))
    assert (window.steps, window.end_ns) == (steps, 2_900 if steps == 3 else 63_010)
    ((said, _),) = ranges.lacking
    assert said.startswith("step 3 left out") == (steps == 3)


def test_steps_of_which_only_whole_graphs_were_traced(tmp_path: Path) -> None:
    """As nsys traces graphs by default: no kernel is in the capture. Each step begins with its graph."""
    builder, thread, device = one_gpu()
    for begin in (0, 100, 200):
        thread.range(f"step {begin}", begin, begin + 90)
        device.graph_launch(1, begin + 20, begin + 80, launch=(thread, begin + 5, begin + 10))
    trace = trace_of(builder, tmp_path)
    window = window_of(trace, activity_of(trace), AUTO)
    assert steps_of(window) == [(20, 120), (120, 220), (220, 280)]
