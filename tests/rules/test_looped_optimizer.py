"""PD408: an optimizer step of small kernels for each parameter, by its range or by its sequence."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.results.kernels import OptimizerLoop
from perfdoc.rules.engine.case import Case
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.edits.host import fused_optimizer
from perfdoc.simulator.replay.rebuilt import rebuild_rank
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.rules.cases import STEP_US, US, case_of, evidence_of, gain_of, predicting, result
from tests.rules.laid import MUL, given

ROOT = (
    "void at::native::vectorized_elementwise_kernel<(int)4, "
    "at::native::sqrt_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 2)], "
    "std::array<char *, (unsigned long)2>>(int, T2, T3)"
)
FUSED = (
    "void at::native::<unnamed>::multi_tensor_apply_kernel<"
    "at::native::<unnamed>::TensorListMetadata<(int)4>, "
    "at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4>>(T1, T2)"
)
ADAM = (MUL, MUL, MUL, MUL, ROOT, MUL, MUL, MUL)
"""Eight kernels for a parameter."""


RSQRT = ROOT.replace("::sqrt_kernel_cuda", "::rsqrt_kernel_cuda")


def stepping(
    *unit: str, tensors: int = 10, range_name: str = "", every_us: int = 5, between: str = ""
) -> TimelineBuilder:
    """Two steps of 1 ms: a product of 500 us, then `tensors` times the unit, a kernel of 2 us every 5 us.
    between: a kernel of 1 us behind each unit."""
    builder, thread, device = one_gpu()

    def launch(name: str, start: int, end: int, call: int) -> None:
        device.kernel(name.split("<")[0], start, end, full_name=name, launch=(thread, call, call + US // 2))

    for i in range(2):
        at = i * STEP_US * US
        thread.range(f"step {i}", at, at + STEP_US * US)
        launch(GEMM, at + US, at + 500 * US, at)
        kernels = [name for _ in range(tensors) for name in (*unit, *([between] if between else []))]
        begin = at + 500 * US
        if range_name:
            thread.range(range_name, begin - 3 * US, begin + len(kernels) * every_us * US)
        for k, name in enumerate(kernels):
            start = begin + k * every_us * US
            launch(name, start, start + 2 * US, start - US)
    return builder


def loop_of(case: Case) -> OptimizerLoop:
    return case.ranks[0].kernel_parts.optimizer


@pytest.mark.parametrize(
    ("range_name", "evidence"),
    [("Optimizer.step#AdamW.step", "range"), ("optimizer", "range"), ("", "sequence")],
)
def test_a_loop_is_found_and_what_it_costs(tmp_path: Path, range_name: str, evidence: str) -> None:
    """80 kernels of 2 us from 500 to 897 us: 160 us, and 237 us idle between them. A fused kernel still takes
    one kernel of 2 us for each of ten parameters. The window is [1, 1897) us. The host is in the loop for 395
    us, and ahead without it: the 104 us between the steps may go as well, 52 a step. At most 429 a step."""
    case = given(case_of(tmp_path, stepping(*ADAM, range_name=range_name)), None)
    found = loop_of(case)
    assert (found.evidence, found.stretches, found.kernels) == (evidence, 2, 160)
    assert (found.kernels_ns, found.idle_ns, found.kernels_per_tensor) == (320 * US, 474 * US, 8)
    assert found.host_ns == 2 * 395 * US
    verdict = result("PD408", case)
    assert (verdict.state, verdict.level) == ("fires", "problem")
    assert (gain_of(verdict).method, gain_of(verdict).high_ms) == ("ceiling", pytest.approx(0.429))
    assert evidence_of(verdict) == [
        "41.9 %",
        "397 µs",
        "80",
        "8 kernels",
        "160 µs",
        "237 µs, 59.7 % of the optimizer's time",
    ]
    assert "fused=True" in verdict.remedy
    assert "foreach=True" in verdict.remedy


@pytest.mark.parametrize("range_name", ["optimizer", ""])
def test_a_fused_update_is_replayed(tmp_path: Path, range_name: str) -> None:
    """The host is done with the loop at 499.5 us and with 105.5 us more that lie before the next step: its
    product runs in [606, 1105), behind which 80 kernels of an eighth of their 2 us end at 1,125. With kernels
    as long as they were, the first loop ends at 660, the product in [660, 1159), and the second at 1,319."""
    rebuilt = rebuild_rank(view_of(stepping(*ADAM, range_name=range_name), tmp_path))
    assert rebuilt.span(schedule(rebuilt.graph).end_ns) == 1_896 * US
    edit = fused_optimizer()
    spans = [change(rebuilt) for change in (edit.apply, *edit.variants)]
    assert [s.span(schedule(s.graph).end_ns) for s in spans] == [1_124 * US, 1_318 * US]
    # The same launches by stretches in any order, one of them inside another, one of nothing.
    (frame,) = rebuilt.ranks
    loop = frame.optimizer
    start, end = (np.concatenate((at[::-1], at)) for at in (loop.start_ns, loop.end_ns))
    end[: len(loop.end_ns)] = loop.start_ns[::-1]
    split = replace(loop, start_ns=np.append(start, -9), end_ns=np.append(end, -9))
    again = edit.apply(replace(rebuilt, ranks=(replace(frame, optimizer=split),)))
    assert np.array_equal(again.graph.duration_ns, spans[0].graph.duration_ns)


def test_no_loop_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no optimizer step"):
        fused_optimizer().apply(rebuild_rank(view_of(stepping(*ADAM, between=GEMM), tmp_path)))


@pytest.mark.parametrize(("saved_ms", "state"), [(0.01, "fires"), (0.0099, "passes")])
def test_the_gain_is_the_replays_where_there_is_one(tmp_path: Path, saved_ms: float, state: str) -> None:
    case = case_of(tmp_path, stepping(*ADAM, range_name="optimizer"))
    found = result("PD408", predicting(case, fused_optimizer=(0.005, saved_ms, 0.02)))
    assert found.state == state
    if state == "fires":
        assert (gain_of(found).method, gain_of(found).mid_ms) == ("replay", saved_ms)


def test_megatron_has_another_remedy(tmp_path: Path) -> None:
    case = case_of(tmp_path, stepping(*ADAM, range_name="optimizer"))
    assert "FusedAdam" in result("PD408", case).remedy


def test_an_optimizer_without_roots_needs_its_range(tmp_path: Path) -> None:
    """SGD: four kernels for each of twenty parameters. The last kernel of 80 ends at 897 us; how many there
    are for each is not known, and no part of their own time is kept."""
    named = given(
        case_of(tmp_path, stepping(*[MUL] * 4, tensors=20, range_name="Optimizer.step#SGD.step")), None
    )
    assert (loop_of(named).kernels, loop_of(named).kernels_per_tensor) == (160, None)
    assert result("PD408", named).state == "fires"
    assert loop_of(case_of(tmp_path, stepping(*[MUL] * 4, tensors=20))) == OptimizerLoop()


@pytest.mark.parametrize(
    ("what", "builder"),
    [
        ("fused", stepping(FUSED, tensors=80, range_name="optimizer")),
        ("few kernels", stepping(*ADAM, tensors=7, range_name="optimizer")),
        ("few parameters, no range", stepping(*ADAM, tensors=7)),
        ("layers of a model", stepping(*ADAM, between=GEMM)),
        ("norms by hand", stepping(*(MUL, MUL, MUL, MUL, RSQRT, MUL, MUL, MUL))),
    ],
)
def test_what_is_no_loop_is_silent(tmp_path: Path, what: str, builder: TimelineBuilder) -> None:
    case = case_of(tmp_path, builder)
    assert loop_of(case) == OptimizerLoop(), what
    assert result("PD408", case).state == "passes"


def test_clipping_that_is_fused_hides_no_loop(tmp_path: Path) -> None:
    """A multi-tensor norm behind every 80 small kernels is no fused update."""
    case = case_of(
        tmp_path, stepping(*ADAM * 10, tensors=2, range_name="optimizer", between=FUSED, every_us=3)
    )
    assert loop_of(case).kernels == 2 * 160


@pytest.mark.slow
def test_the_optimizer_of_a_real_capture(shared_traces: Path) -> None:
    """111 parameters, 16 kernels for each."""
    from perfdoc.analyzers.device.window import WindowRequest
    from perfdoc.analyzers.measure import measure_capture

    path = shared_traces / "nsys" / "gpt_small_full_step_a100.sqlite"
    (rank,) = measure_capture(path, WindowRequest()).ranks
    found = rank.kernel_parts.optimizer
    assert (found.evidence, found.kernels, found.kernels_per_tensor) == ("range", 111 * 16, 16)
