"""A simulated job and its job.yaml: the kernels of a rank have the model's FLOPs, to the last."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.profiling.flops import flops_per_token
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.traces.given_facts import given_facts
from perfdoc.traces.known_models import known_models

LENGTH = 2048
STEPS, MICRO_BATCHES = 2, 2


def measured(folder: Path, model: str, layout: str, rank: int) -> KernelEfficiency:
    shape = msgspec.structs.replace(known_models()[model], layers=4)
    job = simulate(shape, parse_layout(f"seq={LENGTH},micro_batches={MICRO_BATCHES},{layout}"), steps=STEPS)
    write_job(job, folder, ranks=[rank])
    facts = given_facts([], folder / "job.yaml")
    assert facts.model is not None
    assert facts.model.layers == 4
    (found,) = measure_capture(folder / f"traces/rank{rank}.sqlite", WindowRequest(), facts).ranks
    assert found.window.steps == STEPS
    return found.efficiency


def flops(found: KernelEfficiency, kernel_class: str) -> float:
    return next(row.flops or 0.0 for row in found.by_class if row.kernel_class == kernel_class)


@pytest.mark.parametrize(
    ("layout", "rank", "divided", "layers"),
    [("tp=2", 1, 2, 4), ("cp=2", 0, 2, 4), ("pp=2", 0, 1, 2)],
    ids=["tp", "cp", "pp"],
)
def test_a_rank_has_the_models_flops(
    tmp_path: Path, layout: str, rank: int, divided: int, layers: int
) -> None:
    """GEMMs as the model's count has them; attention 7/6 of it, since its backward computes scores again.
    The first stage of two has half of the layers and no output layer."""
    found = measured(tmp_path, "llama3-8b", layout, rank)
    shape = msgspec.structs.replace(known_models()["llama3-8b"], layers=layers, sequence_length=LENGTH)
    tokens = STEPS * MICRO_BATCHES * LENGTH // divided
    attention = 6 * layers * 4096 * LENGTH
    output = 0 if layers == 4 else 6 * 4096 * shape.vocabulary
    gemms = flops_per_token(shape) - attention - output
    assert flops(found, "gemm") == pytest.approx(tokens * gemms, rel=1e-9)
    assert flops(found, "attention") == pytest.approx(tokens * attention * 7 / 6, rel=1e-9)
    assert found.known_frac is not None
    assert found.known_frac > 0.5
    assert {row.source for row in found.operators} == {"model"}


def test_experts_are_left_out(tmp_path: Path) -> None:
    """Of Mixtral's layers attention is known: 6 x 4,096 x (2 x 4,096 + 2 x 1,024) FLOPs a token and layer."""
    found = measured(tmp_path, "mixtral-8x7b", "dp=2,ep=2", 0)
    tokens = STEPS * MICRO_BATCHES * LENGTH
    assert flops(found, "gemm") == pytest.approx(4 * tokens * 6 * 4096 * (2 * 4096 + 2 * 1024), rel=1e-9)
    assert {row.name.split()[0] for row in found.operators} == {"linear_qkv", "linear_proj", "causal"}
