"""Advice in a job of plain PyTorch: PyTorch's own words, or that it has no such setting."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.frameworks import Program
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.reports.advice import change_title, setting_words
from perfdoc.reports.ci import message_of
from perfdoc.results.headline import Framework
from perfdoc.rules.engine.advise import advise, settle
from perfdoc.rules.engine.case import Case
from tests.analyzers.loader_jobs import job, off
from tests.analyzers.tiny import ALL_GATHER, GEMM
from tests.captures.timeline import one_gpu
from tests.rules.cases import STEP_US, US, case_of, gain_of, result


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Batches come late; one loader process."""
    return case_of(tmp_path_factory.mktemp("x"), job(off))


def shown_by(case: Case, framework: Framework, values: dict[str, Value]) -> Case:
    captures = [replace(capture, framework=framework) for capture in case.captures]
    return replace(case, captures=captures, configuration=Configuration(values=values, dialect=None))


def test_a_setting_is_pytorchs_own(stalled: Case) -> None:
    found = result("PD203", shown_by(stalled, "pytorch", {"dataloader_num_workers": 1}))
    (piece,) = found.advice
    assert piece.dialects == {
        "pytorch": "DataLoader(..., num_workers=2, pin_memory=True, persistent_workers=True)"
    }
    assert "dataloader_num_workers" not in change_title(piece) + message_of(found)
    assert "num_workers=2" in message_of(found)
    megatron = result("PD203", shown_by(stalled, "megatron", {"dataloader_num_workers": 1}))
    assert set(megatron.advice[0].dialects) > {"megatron_lm"}
    assert "dataloader_num_workers" in message_of(megatron)


SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("gathers", "marks", "says", "never"),
    [
        (2, (), "reshard_after_forward=False", "stage 2"),
        (1, (), "HSDP", "reshard_after_forward"),
        (2, ("deepspeed",), "ZeRO stage 2", "reshard_after_forward"),
        (1, ("deepspeed",), "stage3_prefetch_bucket_size", "stage 2"),
    ],
)
def test_shards_have_their_own_ways_to_send_less(
    gathers: int, marks: tuple[str, ...], says: str, never: str, tmp_path: Path
) -> None:
    """Steps of 1 ms: weights are gathered once or twice, gradients scattered once, for 200 us each, the last
    quarter of all under compute: overlap is on. Less that is sent saves more than so little can hide."""
    builder, thread, device = one_gpu()
    for step in range(3):
        at = step * STEP_US * US
        thread.range(f"perfdoc.step {step}", at, at + STEP_US * US)
        thread.range("FSDP::pre_forward (layer)", at + 1, at + 90 * US)
        for i, name in enumerate([ALL_GATHER] * gathers + [SCATTER]):
            begin, call = at + 200 * i * US, at + (2 + i) * US
            device.kernel(name, begin, begin + 200 * US, stream=20, launch=(thread, call, call + 500))
        begin = at + 150 * (gathers + 1) * US
        device.kernel(
            GEMM, begin, begin + 50 * (gathers + 1) * US, launch=(thread, at + 50 * US, at + 51 * US)
        )
    case = case_of(tmp_path, builder)
    program = Program(vendor="nvidia", marks=frozenset({"pytorch", "trains", *marks}))
    captures = [replace(c, framework="pytorch", program=program) for c in case.captures]
    found = result("PD101", replace(case, captures=captures, configuration=Configuration()))
    assert found.state == "fires"
    assert (says in found.remedy, never in found.remedy) == (True, False)
    assert gain_of(found).high_ms == pytest.approx(0.15 * (gathers + 1), rel=0.02)


def test_what_pytorch_lacks_is_refused_and_environment_variables_stay(stalled: Case) -> None:
    case = shown_by(stalled, "pytorch", {})
    pieces = [
        advise(knob="tp_comm_overlap", to=True, why="x"),
        advise(knob="cuda_device_max_connections", to=1, why="x"),
        advise(knob="bucket_size", to=40 << 20, why="x"),
    ]
    lacking, variable, bucket = settle(case, pieces)
    assert lacking.dialects == {}
    # What it does, in words; Megatron's setting is an example.
    assert setting_words(lacking) == ("x", "PyTorch has no such setting; in Megatron-LM: --tp-comm-overlap")
    assert (variable.forbidden, set(variable.dialects)) == ("", {"env"})
    # 40 Mi elements of 4 bytes.
    assert bucket.dialects == {"pytorch": "DistributedDataParallel(model, bucket_cap_mb=160)"}
    assert settle(shown_by(stalled, "", {}), pieces) == pieces


def test_a_switch_is_not_advised_without_what_the_other_settings_demand_beside_it(stalled: Case) -> None:
    # First and last layers in BF16 exclude delayed scaling, the default: FP8 needs another recipe beside it,
    # and verl's FSDP has none to set.
    settings: dict[str, Value] = {"first_last_layers_bf16": True, "fp8": None, "fp8_recipe": "delayed"}
    pieces = [advise(knob="fp8", to="hybrid", why="x"), advise(knob="fp8_recipe", to="tensorwise", why="y")]
    for values, refused in ((settings, True), (settings | {"first_last_layers_bf16": False}, False)):
        told = Configuration(values=values | {"verl_strategy": "fsdp"}, dialect="verl", complete=True)
        case = replace(stalled, configuration=told)
        fp8, recipe = settle(case, pieces)
        assert recipe.forbidden
        assert bool(fp8.forbidden) == refused
        assert set(fp8.dialects) == {"pytorch"}
