"""Shapes of operators and the model's shape together, and the tables that are made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.efficiency.roofline import believed, rooflines
from perfdoc.analyzers.efficiency.tables import operators_of
from perfdoc.analyzers.kernels.attributed import attributed_kernels
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.work.kernels import kernel_work
from perfdoc.analyzers.work.operator_work import SOURCES, KernelWork
from perfdoc.profiling.manifest import ModelShape
from perfdoc.results.ceilings import Ceiling, Ceilings
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import views_of
from tests.analyzers.model_plan import FLASH, GEMM, ModelPlan, flops
from tests.analyzers.model_plan import facts as given
from tests.analyzers.shape_plan import BF16, ShapePlan
from tests.captures.nsys_sqlite import write_nsys_sqlite

FC = 2 * 30 * 8 * 24


def mixed(folder: Path, *, rows: int = 30, facts: JobFacts | None = None) -> KernelWork:
    """Two layers: the first one's feed-forward network of operators with shapes, all else of a library."""
    plan = ShapePlan()
    for begin, in_operators in ((0, True), (200, False)):
        for i, kernel in enumerate((GEMM, FLASH, GEMM)):
            plan.kernel(kernel, 5, begin + 10 * i + 2)
        for at, (m, n) in ((begin + 50, (8, 24)), (begin + 60, (24, 8))):
            if in_operators:
                plan.operator("aten::mm", at, at + 8, dims=[[rows, m], [m, n]], dtypes=[BF16, BF16])
            plan.kernel(GEMM, 5, at + 2)
    view = plan.view(folder, facts or given())
    return kernel_work(view, np.sort(view.activity.kernel_rows), attributed_kernels(view))


def test_shapes_win_and_the_model_fills_in(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    beside = ["model"] * 3
    assert [SOURCES[i] for i in found.source.tolist()] == [
        *beside,
        "shapes",
        "shapes",
        *beside,
        "model",
        "model",
    ]
    assert flops(found)[3:5] == flops(found)[8:] == [FC] * 2
    names = [found.operators[i].name for i in found.operator.tolist()]
    assert names[3:5] == ["aten::mm", "aten::mm"]
    assert names[8:] == ["linear_fc1 forward", "linear_fc2 forward"]
    assert len(set(found.call.tolist())) == 10


def test_a_model_that_the_shapes_contradict_is_left_out(tmp_path: Path) -> None:
    """The operators have 28 rows and not 30: 7 % less."""
    found = mixed(tmp_path, rows=28)
    none = ["none"] * 3
    assert [SOURCES[i] for i in found.source.tolist()] == [*none, "shapes", "shapes", *none, "none", "none"]
    assert "7%" in found.notes[0]


def test_why_the_model_does_not_fill_in(tmp_path: Path) -> None:
    """Half of the GEMMs have shapes, and the model is not given."""
    found = mixed(tmp_path, facts=JobFacts(dtype="bf16"))
    assert flops(found) == [-1, -1, -1, FC, FC, *[-1] * 5]
    assert "model, mbs, seq not given" in found.notes[0]


def test_operators_of_the_model_are_counted(tmp_path: Path) -> None:
    """Three layers: a call each; 1 us at 1 FLOP/ns."""
    plan = ModelPlan()
    for _ in range(3):
        plan.run(GEMM, FLASH, FLASH, GEMM, GEMM, GEMM)
    work = plan.work(tmp_path)
    count = len(work.flops)
    ceilings = Ceilings(
        device="planted",
        flops={"bf16": Ceiling(value=1e15, source="datasheet", text="planted")},
        memory=None,
        sm_count=100,
        reason="",
    )
    whole = np.full(count, 1_000, np.int64)
    roofline = rooflines(work, np.ones(count, bool), whole, ceilings, "bf16")
    rows = operators_of(work, roofline, whole, whole).rows
    assert {(row.name, row.calls, row.time_ns, row.source) for row in rows} == {
        ("linear_qkv forward", 3, 3_000, "model"),
        ("linear_proj forward", 3, 3_000, "model"),
        ("causal attention forward", 3, 6_000, "model"),
        ("linear_fc1 forward", 3, 3_000, "model"),
        ("linear_fc2 forward", 3, 3_000, "model"),
    }
    fc1 = next(row for row in rows if row.name == "linear_fc1 forward")
    assert fc1.achieved_tflops == pytest.approx(FC / 1_000 / 1_000)


@pytest.mark.parametrize(("slow_ns", "model"), [(90_000, True), (5_000, False)])
def test_a_model_that_is_too_fast_is_left_out(tmp_path: Path, slow_ns: int, model: bool) -> None:
    """4 kernels of 1,000 ns are too fast: of 94 us in all 4.3 %, of 9 us 44 %. The fifth could be."""
    plan = ModelPlan()
    for _ in range(2):
        plan.run(GEMM, FLASH, GEMM, GEMM, GEMM)
    work = plan.work(tmp_path)
    five = {
        name: np.repeat(getattr(work, name)[3:4], 5)
        for name in ("flops", "bytes", "dtype", "source", "operator", "call")
    }
    work = KernelWork(**five, operators=work.operators)
    fast, whole = np.array([True] * 4 + [False]), np.array([1_000] * 4 + [slow_ns])
    found = believed(work, fast, whole)
    assert flops(found) == [FC if model else -1] * 5
    assert ("44%" in found.reason) != model
    of_shapes = dataclasses.replace(work, source=np.array([1, 1, 1, 1, 0]))
    found = believed(of_shapes, fast, whole)
    assert flops(found) == [-1] * 4 + [FC]
    assert "100%" in found.notes[0]


def test_a_wrong_batch_leaves_all_of_compute_unknown(tmp_path: Path) -> None:
    """On an H100, 11.5 GFLOP take 11.6 us at its peak, a third more 15.5: fc1 took 12 us, the others more."""
    plan = ModelPlan()
    for _ in range(2):
        plan.run(GEMM, FLASH, GEMM, GEMM, GEMM, ns=[30_000, 60_000, 30_000, 12_000, 20_000])
    path = write_nsys_sqlite(plan.builder.build(), tmp_path / "x.sqlite")
    for batch, known in ((3_000_000, True), (4_000_000, False)):
        facts = given(micro_batch_sequences=batch)
        (rank,) = measure_capture(path, WindowRequest(whole_capture=True), facts).ranks
        assert (rank.efficiency.known_ns > 0) == known
        assert any("faster than the peak" in note for note in rank.efficiency.notes) != known


def test_a_real_forward_pass(shared_traces: Path) -> None:
    """Qwen1.5 0.5B on an H100, 16 sequences of 559 tokens: without its shapes the model's shape gives 189 of
    193 GEMMs and attentions the same FLOPs, biases aside (1 of 2,048)."""
    trace = read_kineto(shared_traces / "shapes" / "qwen15_05b_forward_h100.json.gz")
    sizes = {"layers": 24, "hidden_size": 1024, "ffn_hidden_size": 2816, "attention_heads": 16}
    shape = ModelShape(
        name="qwen",
        query_groups=16,
        kv_channels=64,
        vocabulary=151936,
        sequence_length=559,
        gated_mlp=True,
        **sizes,
    )
    facts = JobFacts(model=shape, sequence_length=559, micro_batch_sequences=16, dtype="bf16")
    stripped = dataclasses.replace(
        trace, operators=dataclasses.replace(trace.operators, dims=np.zeros_like(trace.operators.dims))
    )
    found = []
    for one in (trace, stripped):
        (view,) = views_of(one, facts)
        kernels = attributed_kernels(view)
        assert kernels is not None
        work = kernel_work(view, kernels.rows, kernels)
        found.append(np.where(np.isin(kernels.classes, (1, 2)), work.flops, np.nan))
    shapes, model = found
    assert (~np.isnan(shapes)).sum() == 193
    both = ~np.isnan(shapes) & ~np.isnan(model)
    assert both.sum() == (~np.isnan(model)).sum() == 189
    np.testing.assert_allclose(model[both], shapes[both], rtol=1 / 2_000)
