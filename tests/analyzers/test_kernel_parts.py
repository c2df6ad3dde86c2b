"""Parts of planted steps, recomputed ones among them: every figure worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.step_plan import ADAM, ADD, FLASH, FLASH_BACKWARD, NORM, Plan, parts_of, times
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import one_gpu


def planted() -> Plan:
    """One step of one layer with perfdoc's ranges: forward, backward with a recomputed MLP, optimizer."""
    plan = Plan()
    main, autograd = plan.main, plan.autograd
    plan.kernel(ADD, 3)  # [0, 10,000): no range
    main.range("perfdoc.forward", 10_000, 90_000)
    main.range("perfdoc.forward layer=0", 10_000, 70_000)
    main.range("perfdoc.forward layer=0 module=input_layernorm", 10_000, 20_000)
    plan.kernel(NORM, 5)
    main.range("perfdoc.forward layer=0 module=self_attention", 20_000, 50_000)
    plan.kernel(GEMM, 20)
    plan.kernel(FLASH, 40)
    plan.kernel(ALL_REDUCE, 7)
    main.range("perfdoc.forward layer=0 module=mlp", 50_000, 60_000)
    plan.kernel(GEMM, 60)
    plan.kernel(ADD, 2)  # [60, 70): in the layer, in no part of it
    main.range("perfdoc.forward module=output_layer", 70_000, 80_000)
    plan.kernel(GEMM, 30)
    plan.kernel(ADD, 1)  # [80, 90): in the forward alone
    main.range("perfdoc.backward", 90_000, 160_000)
    plan.kernel(GEMM, 100, autograd)  # autograd's thread, no range of its own
    plan.kernel(FLASH_BACKWARD, 80, autograd)
    autograd.range("perfdoc.forward layer=0 module=mlp", 110_000, 120_000)
    plan.kernel(GEMM, 61, autograd)  # recomputed
    plan.kernel(ADD, 4, autograd)
    plan.kernel(FLASH, 41, autograd)  # recomputed, as its name says
    main.range("perfdoc.optimizer", 160_000, 180_000)
    plan.host = 160_000
    plan.kernel(ADAM, 9)
    plan.kernel(ADD, 6)
    plan.kernel(ADAM, 8)  # [180, 190): outside, known by name
    return plan


def test_a_planted_step(tmp_path: Path) -> None:
    found = planted().measure(tmp_path)
    assert times(found) == {
        ("unknown", "unknown", "none"): 3,
        ("norm", "forward", "range"): 5,
        ("attention", "forward", "range"): 60,
        ("communication", "forward", "kernel_name"): 7,
        ("mlp", "forward", "range"): 60,
        ("unknown", "forward", "none"): 2 + 1,
        ("output_layer", "forward", "range"): 30,
        ("unknown", "backward", "none"): 100 + 4,
        ("attention", "backward", "kernel_name"): 80,
        ("mlp", "recompute", "range"): 61,
        ("attention", "recompute", "kernel_name"): 41,
        ("optimizer", "optimizer", "range"): 15,
        ("optimizer", "optimizer", "kernel_name"): 8,
    }
    assert found.kernel_ns == 477_000
    assert found.compute_kernel_ns == 470_000
    assert found.unknown_frac == 110 / 470
    # Products 20 + 60 + 30 + 100 + 61; fused attention 40 + 80 + 41.
    assert (found.linear_ns, found.linear_frac) == (271_000, 271 / 477)
    assert (found.attention_ns, found.grouped_linear_ns) == (161_000, 0)
    assert (found.attention_frac, found.grouped_linear_frac) == (161 / 477, 0.0)
    assert found.linear_reason == ""
    # The MLP's forward is in a range, that of attention has only its name: more may have been recomputed.
    assert (found.recompute_ns, found.recompute_frac) == (102_000, 102 / 477)
    assert found.recompute_reason.startswith("lower bound")
    assert (found.padding_frac, bool(found.padding_reason)) == (None, True)
    assert (found.state, found.reason, found.unfused) == ("measured", "", [])


def test_shares_of_the_window_are_unions(tmp_path: Path) -> None:
    plan = Plan()
    plan.device.kernel(GEMM, 100_000, 140_000)
    plan.device.kernel(GEMM, 120_000, 160_000, stream=9)
    plan.device.kernel(ADD, 160_000, 200_000)
    found = plan.measure(tmp_path)
    assert (found.linear_ns, found.linear_window_frac) == (80_000, 0.6)


def test_kernels_are_clipped_to_the_window(tmp_path: Path) -> None:
    plan = Plan()
    plan.device.kernel(GEMM, 100_000, 140_000)
    plan.device.kernel(GEMM, 150_000, 160_000)
    view = view_of(plan.builder, tmp_path)
    found = parts_of(
        replace(view, window=replace(view.window, start_ns=130_000, end_ns=150_000, duration_ns=20_000))
    )
    assert (found.kernel_ns, found.linear_window_frac) == (10_000, 0.5)
    nothing = parts_of(
        replace(view, window=replace(view.window, start_ns=0, end_ns=100_000, duration_ns=100_000))
    )
    assert (nothing.state, nothing.linear_frac) == ("not_measured", None)


def test_products_in_the_core_of_attention_are_no_linear_layers(tmp_path: Path) -> None:
    plan = Plan()
    plan.main.range("self_attention", 0, 40_000)
    plan.kernel(GEMM, 10)
    plan.main.range("core_attention", 10_000, 30_000)
    plan.kernel(GEMM, 20)
    plan.kernel(ADD, 5)
    plan.kernel(GEMM, 40)
    found = plan.measure(tmp_path)
    assert (found.linear_ns, found.attention_ns) == (50_000, 20_000)
    assert (times(found), found.linear_reason) == ({("attention", "unknown", "range"): 75}, "")
    bare = Plan()
    bare.kernel(GEMM, 10)
    assert "included" in bare.measure(tmp_path).linear_reason


def test_products_of_experts_are_apart(tmp_path: Path) -> None:
    plan = Plan()
    plan.kernel("void grouped_mm_kernel<x>(y)", 10)
    plan.main.range("experts", 10_000, 20_000)
    plan.kernel(GEMM, 20)
    plan.main.range("mlp", 20_000, 50_000)
    plan.kernel(GEMM, 40)
    plan.kernel("void moe_permute_kernel<float>(x)", 3)
    plan.kernel(ADD, 2)
    found = plan.measure(tmp_path)
    assert (found.linear_ns, found.grouped_linear_ns) == (40_000, 30_000)
    assert times(found)[("moe", "unknown", "range")] == 3
    # Where every layer has experts, a layer's mlp is theirs.
    sizes = ("hidden_size", "ffn_hidden_size", "attention_heads", "query_groups", "kv_channels")
    shape = ModelShape(
        **dict.fromkeys(sizes, 1),
        name="x",
        layers=2,
        vocabulary=1,
        sequence_length=1,
        gated_mlp=False,
        experts=8,
    )
    found = plan.measure(tmp_path, JobFacts(model=shape))
    assert (found.linear_ns, found.grouped_linear_ns) == (0, 70_000)
    assert times(found)[("moe", "unknown", "range")] == 45
    mixed = msgspec.structs.replace(shape, expert_layers=1)
    assert plan.measure(tmp_path, JobFacts(model=mixed)).linear_ns == 40_000


def emit_nvtx(plan: Plan) -> None:
    """Forward operators with their numbers in ranges of parts, and the nodes of their gradients."""
    main, auto = plan.main, plan.autograd
    main.range("attention sublayer", 0, 20_000)
    main.range("aten::linear, seq = 70, op_id = 1", 0, 10_000)
    main.range("aten::addmm, seq = 71, op_id = 2, sizes = [[4, 768]]", 500, 9_000)
    plan.kernel(GEMM, 10)
    main.range("core_attention", 10_000, 20_000)
    main.range("aten::bmm, seq = 72, op_id = 3", 10_000, 20_000)
    plan.kernel(GEMM, 20)
    main.range("aten::mul, seq = 73, op_id = 4", 20_000, 30_000)  # in no part
    plan.kernel(ADD, 1)
    plan.host = 100_000
    auto.range("autograd::engine::evaluate_function: MulBackward0, op_id = 5", 100_000, 110_000)
    auto.range("MulBackward0, seq = 73, op_id = 6", 100_500, 109_000)
    plan.kernel(ADD, 2, auto)
    auto.range("BmmBackward0, seq = 72, op_id = 7", 110_000, 120_000)
    auto.range("aten::bmm, op_id = 8", 110_500, 119_000)
    plan.kernel(GEMM, 40, auto)
    auto.range("AddmmBackward0, seq = 71, op_id = 9", 120_000, 130_000)
    plan.kernel(GEMM, 80, auto)
    auto.range("AddmmBackward0, seq = 99, op_id = 9", 130_000, 140_000)  # of an operator before the capture
    plan.kernel(GEMM, 160, auto)


def test_sequence_numbers_lead_from_a_gradient_to_its_part(tmp_path: Path) -> None:
    plan = Plan()
    emit_nvtx(plan)
    found = plan.measure(tmp_path)
    assert times(found) == {
        ("attention", "forward", "range"): 10,  # aten::linear is a forward
        ("attention", "unknown", "range"): 20,
        ("unknown", "unknown", "none"): 1,
        ("unknown", "backward", "none"): 2 + 160,
        ("attention", "backward", "sequence"): 40 + 80,
    }
    # The core's product and its gradient are no linear layer's.
    assert (found.linear_ns, found.attention_ns) == (10_000 + 80_000 + 160_000, 20_000 + 40_000)


def test_two_threads_that_number_operators_lead_nowhere(tmp_path: Path) -> None:
    plan = Plan()
    emit_nvtx(plan)
    other = plan.process.thread()
    other.range("mlp", 0, 20_000)
    other.range("aten::mul, seq = 72, op_id = 1", 0, 10_000)
    assert not any(p.evidence == "sequence" for p in plan.measure(tmp_path).parts)


def test_ranges_that_do_not_nest_are_not_followed(tmp_path: Path) -> None:
    plan = Plan()
    plan.main.range("mlp", 0, None)  # never closed
    plan.main.range("attention", 0, 100_000, kind="start_end")
    plan.main.mark("norm", 0)
    plan.kernel(GEMM, 10)
    assert times(plan.measure(tmp_path)) == {("unknown", "unknown", "none"): 10}


def test_linear_layers_are_not_all_matrix_products(tmp_path: Path) -> None:
    # 300 ns of products, of which 100 in attention's core; 100 of communication; 400 in all.
    builder, thread, device = one_gpu()
    thread.range("perfdoc.forward layer=0", 0, 50)
    device.kernel(GEMM, 100, 300, launch=(thread, 10, 12))
    thread.range("core_attention", 20, 40)
    device.kernel(GEMM, 300, 400, launch=(thread, 25, 30))
    device.kernel(ALL_REDUCE, 400, 500, stream=9, launch=(thread, 60, 70))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite", force=True)
    found = diagnose([measure_capture(path, WindowRequest())])
    kernels, (rank,) = found.analyses.kernels, found.ranks
    assert kernels.gemm_frac == 300 / 400
    assert kernels.linear_frac == rank.kernel_parts.linear_frac == 200 / 400
    assert (kernels.linear_reason, rank.kernel_parts.attention_ns) == ("", 100)


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
