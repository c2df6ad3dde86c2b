"""What is recomputed for the backward, and when that is known."""

from __future__ import annotations

from pathlib import Path

from perfdoc.results import KernelPartsAnalysis
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import views_of
from tests.analyzers.step_plan import ADD, FLASH, NORM, Plan, parts_of, times
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto


def kineto(plan: Plan, folder: Path) -> KernelPartsAnalysis:
    (view,) = views_of(read_kineto(write_kineto(plan.builder.build(), folder / "x.json", 1000)))
    return parts_of(view)


def test_a_checkpoint_node_of_autograd_holds_recomputation_and_backward(tmp_path: Path) -> None:
    plan = Plan()
    auto = plan.autograd
    plan.operator("aten::linear", plan.main, 0, 10_000)
    plan.kernel(GEMM, 10)
    plan.operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", auto, 10_000, 60_000)
    plan.operator("CheckpointFunctionBackward", auto, 10_000, 59_000)
    plan.operator("aten::layer_norm", auto, 10_000, 20_000)
    plan.kernel(NORM, 20, auto)
    plan.kernel(ADD, 40, auto)
    plan.operator("autograd::engine::evaluate_function: NativeLayerNormBackward0", auto, 30_000, 40_000)
    plan.kernel("rmsnorm_bwd_tuned_kernel", 80, auto)
    plan.operator("autograd::engine::evaluate_function: MulBackward0", auto, 40_000, 50_000)
    plan.kernel(ADD, 160, auto)
    found = kineto(plan, tmp_path)
    assert times(found) == {
        ("unknown", "forward", "none"): 10,
        ("norm", "recompute", "range"): 20,
        ("unknown", "recompute", "none"): 40,
        ("norm", "backward", "range"): 80,
        ("unknown", "backward", "none"): 160,
    }
    assert (found.recompute_ns, found.recompute_reason) == (60_000, "")


def test_forward_operators_in_a_node_are_a_part_of_what_is_recomputed(tmp_path: Path) -> None:
    # Without re-entry the forward runs inside of the first node that needs its tensors.
    plan = Plan()
    plan.operator("autograd::engine::evaluate_function: MulBackward0", plan.autograd, 0, 30_000)
    plan.operator("aten::linear", plan.autograd, 0, 10_000)
    plan.kernel(GEMM, 10, plan.autograd)
    plan.kernel(ADD, 20, plan.autograd)
    found = kineto(plan, tmp_path)
    assert times(found) == {("unknown", "recompute", "none"): 10, ("unknown", "backward", "none"): 20}
    assert found.recompute_ns == 10_000
    assert found.recompute_reason.startswith("lower bound")


def test_a_loss_in_a_block_called_backward_is_forward(tmp_path: Path) -> None:
    plan = Plan()
    plan.main.range("## backward ##", 0, 20_000)
    plan.operator("aten::cross_entropy_loss", plan.main, 0, 10_000)
    plan.kernel(ADD, 10)
    plan.kernel(ADD, 20)
    found = kineto(plan, tmp_path)
    assert times(found) == {("loss", "forward", "range"): 10, ("unknown", "backward", "none"): 20}
    assert found.recompute_ns == 0


def test_when_recomputation_is_known_to_be_none(tmp_path: Path) -> None:
    plan = Plan()
    plan.main.range("forward pass", 0, 10_000)
    plan.kernel(GEMM, 10)
    assert plan.measure(tmp_path).recompute_ns is None  # no backward
    plan.main.range("backward pass", 10_000, 20_000)
    plan.kernel(GEMM, 20, plan.autograd)
    found = plan.measure(tmp_path)
    assert (found.recompute_ns, found.recompute_frac) == (None, None)  # nothing would show
    off = plan.measure(tmp_path, JobFacts(recompute="none", sources={"recompute": "run.json"}))
    assert (off.recompute_ns, off.recompute_frac, off.recompute_reason) == (0, 0.0, "off: run.json")
    on = plan.measure(tmp_path, JobFacts(recompute="full"))
    assert on.recompute_ns is None
    assert "recomputes" in on.recompute_reason


def test_ranges_of_layers_alone_show_no_recomputed_attention(tmp_path: Path) -> None:
    for flash, expected in ((False, None), (True, 0)):
        plan = Plan()
        plan.main.range("perfdoc.forward layer=0", 0, 10_000)
        plan.kernel(FLASH if flash else GEMM, 10)
        plan.main.range("perfdoc.backward", 10_000, 20_000)
        plan.kernel(GEMM, 20, plan.autograd)
        assert plan.measure(tmp_path).recompute_ns == expected
